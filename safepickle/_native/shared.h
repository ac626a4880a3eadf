/* What both compiled modules need to know about types, and how they take what they call from Python. Included after Python.h. */

#if PY_VERSION_HEX >= 0x030c0000
#define MEMBER_OBJECT_EX Py_T_OBJECT_EX
#else
#include <structmember.h>
#define MEMBER_OBJECT_EX T_OBJECT_EX
#endif

/* 0 where the type has no version that could be relied on: then nothing about it is kept. */
static inline unsigned int
type_version(PyTypeObject *type)
{
#if PY_VERSION_HEX >= 0x030c0000
    return type->tp_version_tag;
#else
    return PyType_HasFeature(type, Py_TPFLAGS_VALID_VERSION_TAG) ? type->tp_version_tag : 0;
#endif
}

static unsigned int
type_new_version(PyTypeObject *type, PyObject *any_name)
{
#if PY_VERSION_HEX >= 0x030c0000
    PyUnstable_Type_AssignVersionTag(type);
#else
    _PyType_Lookup(type, any_name); /* gives the type a version, if it can have one */
#endif
    return type_version(type);
}

static inline size_t
pointer_hash(const void *pointer)
{
    uintptr_t bits = (uintptr_t)pointer >> 4;
    return (size_t)(bits ^ (bits >> 15) ^ (bits << 7));
}

/* Whether an object has one of the attributes in its dictionary, and not None or an empty dictionary: see Rule.concerns. -1 with an
 * exception. */
static int
has_attributes_of_concern(PyObject *obj, PyObject *names)
{
    PyObject *dict = PyObject_GenericGetDict(obj, NULL);
    if (dict == NULL) {
        return -1;
    }
    int concerned = 0;
    for (Py_ssize_t i = 0; !concerned && i < PyTuple_GET_SIZE(names); i++) {
        PyObject *found = PyDict_GetItemWithError(dict, PyTuple_GET_ITEM(names, i));
        if (found == NULL) {
            concerned = PyErr_Occurred() ? -1 : 0;
            continue;
        }
        int is_dict = PyDict_CheckExact(found) || Py_TYPE(found) == &PyODict_Type;
        concerned = found != Py_None && !(is_dict && PyDict_GET_SIZE(found) == 0);
    }
    Py_DECREF(dict);
    return concerned;
}

/* Put x.name into a slot. */
static int
take(PyObject *x, const char *name, PyObject **slot)
{
    PyObject *found = PyObject_GetAttrString(x, name);
    if (found == NULL) {
        return -1;
    }
    Py_XSETREF(*slot, found);
    return 0;
}
