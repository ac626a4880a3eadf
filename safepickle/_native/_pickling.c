/* What the C pickler asks about each object, in C: the twin of Pickler._override in safepickle/pickler.py. That module is the
 * definition; one test suite runs on both.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>

#include "interface.h"

#ifdef Py_GIL_DISABLED
#error "the native pickling module needs the GIL: build without it, Python serves free-threaded interpreters"
#endif

/* As Pickler._override.ours: the answer for the object's type, or NotImplemented at once where there is none. */
typedef struct {
    PyObject_HEAD
    PyObject *known; /* type -> function that reduces its objects, or None */
    PyObject *find;  /* called with a type that is not known yet */
    vectorcallfunc vectorcall;
} Override;

static PyObject *
override_call(PyObject *self, PyObject *const *args, size_t flags, PyObject *names)
{
    if (PyVectorcall_NARGS(flags) != 1 || (names != NULL && PyTuple_GET_SIZE(names) != 0)) {
        PyErr_SetString(PyExc_TypeError, "a reducer override takes one object");
        return NULL;
    }
    Override *override = (Override *)self;
    PyObject *type = (PyObject *)Py_TYPE(args[0]), *answer = NULL;
    if (Py_TYPE(type)->tp_hash == PyType_Type.tp_hash) { /* else a metaclass hashes its types: those are never known */
        answer = PyDict_GetItemWithError(override->known, type);
        if (answer == NULL && PyErr_Occurred()) {
            return NULL;
        }
    }
    if (answer == Py_None) {
        Py_RETURN_NOTIMPLEMENTED;
    }
    if (answer != NULL) {
        Py_INCREF(answer);
    }
    else {
        answer = PyObject_CallOneArg(override->find, type);
        if (answer == NULL) {
            return NULL;
        }
        if (answer == Py_None) {
            Py_DECREF(answer);
            Py_RETURN_NOTIMPLEMENTED;
        }
    }
    PyObject *reduced = PyObject_CallOneArg(answer, args[0]);
    Py_DECREF(answer);
    return reduced;
}

static int
override_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(((Override *)self)->known);
    Py_VISIT(((Override *)self)->find);
    return 0;
}

static int
override_clear(PyObject *self)
{
    Py_CLEAR(((Override *)self)->known);
    Py_CLEAR(((Override *)self)->find);
    return 0;
}

static void
override_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    override_clear(self);
    PyObject_GC_Del(self);
}

static PyTypeObject OverrideType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "safepickle._native._pickling.Override",
    .tp_basicsize = sizeof(Override),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_vectorcall_offset = offsetof(Override, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_dealloc = override_dealloc,
    .tp_traverse = override_traverse,
    .tp_clear = override_clear,
    .tp_doc = "What the C pickler asks about each object.",
};

PyDoc_STRVAR(override_doc,
"override(known, find)\n--\n\n"
"A reducer_override: known maps types to functions or None, find is called with a type that is not in it.");

static PyObject *
pickling_override(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    if (count != 2 || !PyDict_CheckExact(args[0]) || !PyCallable_Check(args[1])) {
        PyErr_SetString(PyExc_TypeError, "override takes a dict and a callable");
        return NULL;
    }
    Override *made = PyObject_GC_New(Override, &OverrideType);
    if (made == NULL) {
        return NULL;
    }
    Py_INCREF(args[0]);
    Py_INCREF(args[1]);
    made->known = args[0];
    made->find = args[1];
    made->vectorcall = override_call;
    PyObject_GC_Track((PyObject *)made);
    return (PyObject *)made;
}

/* ---- the module ------------------------------------------------------------------------------------------------------------------- */

static PyMethodDef methods[] = {
    {"override", (PyCFunction)(void (*)(void))pickling_override, METH_FASTCALL, override_doc},
    {NULL, NULL, 0, NULL},
};

static int
module_exec(PyObject *module)
{
    if (PyInterpreterState_Get() != PyInterpreterState_Main()) {
        PyErr_SetString(PyExc_ImportError, "the native pickling module serves the main interpreter only");
        return -1;
    }
    if (PyModule_AddIntConstant(module, "INTERFACE", SAFEPICKLE_PICKLING_INTERFACE) < 0) {
        return -1;
    }
    return PyType_Ready(&OverrideType);
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, module_exec},
#if PY_VERSION_HEX >= 0x030c0000
    {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED},
#endif
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "safepickle._native._pickling",
    .m_doc = "What the C pickler asks about each object.",
    .m_size = 0,
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC
PyInit__pickling(void)
{
    return PyModuleDef_Init(&definition);
}
