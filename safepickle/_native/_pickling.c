/* What the C pickler asks about each object, and dumps with a pickler that is there already, in C: the twin of parts of
 * safepickle/pickler.py. That module is the definition; one test suite runs on both.
 *
 * What makes it fast: the answer for a type is kept until the type or a rule changes, and a plain instance is reduced here, to what
 * object.__reduce_ex__ would say. Whatever is not known to be plain is left to the standard library.
 *
 * What makes it safe: nothing borrowed outlives a call of Python code; a plan is found by the address of a type and holds only if the type
 * has the version that it was made for, so it keeps no type alive.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "interface.h"
#include "shared.h"

#ifdef Py_GIL_DISABLED
#error "the native pickling module needs the GIL: build without it, Python serves free-threaded interpreters"
#endif

/* ---- what the module knows -------------------------------------------------------------------------------------------------- */

typedef enum {
    WAY_STANDARD = 0, /* as the standard library does it */
    WAY_PLAIN,        /* an instance of a dictionary and slots and nothing else */
    WAY_RULES,        /* rules of the registry are asked */
    WAY_NAMED,        /* the same, but for what its own name leads to */
    WAY_CONCERNED,    /* the same, if an object has attributes that concern the rules: see Rule.concerns */
    WAY_ORDERED,      /* a collections.OrderedDict */
} Way;

/* How objects of one type are reduced. */
typedef struct {
    PyTypeObject *type; /* borrowed: the version tells whether it is still that type */
    unsigned int version;
    int has_dict;
    Way way;
    PyObject *rules;     /* WAY_RULES, WAY_NAMED, WAY_CONCERNED: a tuple of rules */
    PyObject *names;     /* WAY_PLAIN: a tuple of the names of the slots, the objects that the standard library uses; WAY_CONCERNED: of attributes */
    PyObject *offsets;   /* where the slots are: bytes that hold as many Py_ssize_t */
} Plan;

typedef struct {
    Plan *plans;
    size_t mask;
    size_t used;
    uint64_t generation; /* of the rules, at the time when the table was filled */
} PlanTable;

static PlanTable default_plans;
static uint64_t rules_generation = 1;

static PyObject *default_registry;
static PyObject *importable_modules; /* references._importable_cache: name -> (weak reference to the module, whether importable, ...) */
static PyObject *by_rules_function;  /* pickler._reduced(rules, obj, pickler) */
static PyObject *refreshed_function; /* registry.refreshed(registry): whether no rule waits for a module that is here */
static PyObject *spare_function;     /* pickler._spare(sink, protocol): a pickler to keep */
static PyObject *failed_function;    /* pickler._failed(pickler, error, obj): raises, or has written it in another way */
static PyObject *newobj_function;    /* copyreg.__newobj__ */
static PyObject *dispatch_table;     /* copyreg.dispatch_table */
static PyObject *dumps_function; /* that of the C pickler */
static PyObject *dump_method, *clear_memo_method; /* of pickle.Pickler */
static PyObject *name_cloudpickle, *name_by_value_modules, *name_module, *name_qualname;
static PyObject *name_reduce_ex, *name_getstate, *name_way_for, *name_reducer_override, *name_root, *name_memo, *name_by_value;
static long default_protocol, highest_protocol;

/* ---- plans: how objects of a type are reduced ------------------------------------------------------------------------------------- */

static void
plan_clear(Plan *plan)
{
    Plan old = *plan; /* the last reference to a rule may be ours, and Python code run as it goes */
    memset(plan, 0, sizeof(Plan));
    Py_XDECREF(old.rules);
    Py_XDECREF(old.names);
    Py_XDECREF(old.offsets);
}

/* Where the slots are; a plan whose slots are anything but plain references is none. */
static int
plan_read_slots(Plan *plan, PyObject *members)
{
    Py_ssize_t count = PyTuple_GET_SIZE(members);
    plan->offsets = PyBytes_FromStringAndSize(NULL, count * sizeof(Py_ssize_t));
    if (plan->offsets == NULL) {
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *member = PyTuple_GET_ITEM(members, i);
        if (Py_TYPE(member) != &PyMemberDescr_Type || ((PyMemberDescrObject *)member)->d_member->type != MEMBER_OBJECT_EX) {
            plan->way = WAY_STANDARD;
            return 0;
        }
        Py_ssize_t offset = ((PyMemberDescrObject *)member)->d_member->offset;
        memcpy(PyBytes_AS_STRING(plan->offsets) + i * sizeof offset, &offset, sizeof offset);
    }
    return 0;
}

/* Ask Python how objects of a type are reduced. */
static int
plan_make(Plan *plan, PyTypeObject *type, PyObject *pickler, int *kept)
{
    plan_clear(plan);
    PyObject *answer = PyObject_CallMethodOneArg(pickler, name_way_for, (PyObject *)type);
    if (answer == NULL) {
        return -1;
    }
    int way;
    PyObject *rules, *names, *members;
    if (!PyArg_ParseTuple(answer, "ipO!pO!O!;_way_for", &way, kept, &PyTuple_Type, &rules, &plan->has_dict, &PyTuple_Type, &names,
                          &PyTuple_Type, &members)) {
        Py_DECREF(answer);
        return -1;
    }
    plan->type = type;
    plan->way = (Way)way;
    int failed = 0;
    if (plan->way == WAY_RULES || plan->way == WAY_NAMED || plan->way == WAY_CONCERNED) {
        Py_INCREF(rules);
        plan->rules = rules;
    }
    if (plan->way == WAY_CONCERNED) {
        Py_INCREF(names);
        plan->names = names;
    }
    else if (plan->way == WAY_PLAIN) {
        if (PyTuple_GET_SIZE(names) != PyTuple_GET_SIZE(members)) {
            PyErr_SetString(PyExc_SystemError, "as many members as names are expected");
            failed = -1;
        }
        else {
            Py_INCREF(names);
            plan->names = names;
            failed = plan_read_slots(plan, members);
        }
    }
    Py_DECREF(answer);
    return failed;
}

static inline uint64_t
generation_now(void)
{
    return rules_generation;
}

#include "plan_table.h"

/* ---- plain instances ---------------------------------------------------------------------------------------------------------------- */

/* The state of an instance as object.__getstate__ gives it, NULL without an exception where that is None. NotImplemented where the instance
 * itself has a method that has a say in it. */
static PyObject *
plain_state(PyObject *obj, int has_dict, PyObject *names, PyObject *offsets)
{
    PyObject *state = NULL;
    if (has_dict) {
        state = PyObject_GenericGetDict(obj, NULL);
        if (state == NULL) {
            return NULL;
        }
        if (PyDict_GET_SIZE(state) == 0) {
            Py_CLEAR(state);
        }
        else {
            int own = PyDict_Contains(state, name_reduce_ex);
            if (own == 0) {
                own = PyDict_Contains(state, name_getstate);
            }
            if (own != 0) {
                Py_DECREF(state);
                return own < 0 ? NULL : Py_NewRef(Py_NotImplemented);
            }
        }
    }
    Py_ssize_t count = PyTuple_GET_SIZE(names);
    if (count == 0) {
        return state;
    }
    PyObject *values = PyDict_New();
    for (Py_ssize_t i = 0; values != NULL && i < count; i++) {
        Py_ssize_t offset;
        memcpy(&offset, PyBytes_AS_STRING(offsets) + i * sizeof offset, sizeof offset);
        PyObject *value = *(PyObject **)((char *)obj + offset);
        if (value != NULL && PyDict_SetItem(values, PyTuple_GET_ITEM(names, i), value) < 0) {
            Py_CLEAR(values);
        }
    }
    if (values == NULL) {
        Py_XDECREF(state);
        return NULL;
    }
    if (PyDict_GET_SIZE(values) == 0) {
        Py_DECREF(values);
        return state;
    }
    PyObject *both = PyTuple_New(2);
    if (both == NULL) {
        Py_DECREF(values);
        Py_XDECREF(state);
        return NULL;
    }
    PyTuple_SET_ITEM(both, 0, state != NULL ? state : Py_NewRef(Py_None));
    PyTuple_SET_ITEM(both, 1, values);
    return both;
}

/* What object.__reduce_ex__ says from protocol 2 on, without the empty parts at its end; or NotImplemented. */
static PyObject *
reduce_plain(Plan *plan, PyObject *obj)
{
    /* The plan may go: to make an object may run the garbage collector, and that Python code. */
    PyObject *names = Py_NewRef(plan->names), *offsets = Py_NewRef(plan->offsets), *type = Py_NewRef(Py_TYPE(obj));
    PyObject *state = plain_state(obj, plan->has_dict, names, offsets), *arguments, *reduced = NULL;
    Py_DECREF(names);
    Py_DECREF(offsets);
    if (state == Py_NotImplemented || (state == NULL && PyErr_Occurred())) {
        Py_DECREF(type);
        return state;
    }
    arguments = PyTuple_New(1);
    if (arguments != NULL) {
        PyTuple_SET_ITEM(arguments, 0, type);
        type = NULL;
        reduced = PyTuple_New(state == NULL ? 2 : 3);
    }
    if (reduced == NULL) {
        Py_XDECREF(type);
        Py_XDECREF(arguments);
        Py_XDECREF(state);
        return NULL;
    }
    PyTuple_SET_ITEM(reduced, 0, Py_NewRef(newobj_function));
    PyTuple_SET_ITEM(reduced, 1, arguments);
    if (state != NULL) {
        PyTuple_SET_ITEM(reduced, 2, state);
    }
    return reduced;
}

/* ---- functions and classes that have a name ------------------------------------------------------------------------------------------- */

/* The value that a dictionary, which nobody derived from, has for a key: borrowed, NULL without an exception if there is none. */
static PyObject *
value_in(PyObject *dict, PyObject *key)
{
    return PyDict_CheckExact(dict) ? PyDict_GetItemWithError(dict, key) : NULL;
}

/* Whether the user has asked for the contents of some modules by value: 1, 0 or -1 with an exception. */
static int
any_by_value(PyObject *modules)
{
    PyObject *cloudpickle = value_in(modules, name_cloudpickle);
    if (cloudpickle == NULL || !PyModule_Check(cloudpickle)) {
        return PyErr_Occurred() ? -1 : cloudpickle != NULL;
    }
    PyObject *names = value_in(PyModule_GetDict(cloudpickle), name_by_value_modules);
    if (names == NULL) {
        return PyErr_Occurred() ? -1 : 0;
    }
    return PyAnySet_CheckExact(names) ? PySet_GET_SIZE(names) > 0 : 1;
}

/* Whether a module was found to be importable, and is the one that it was found of. */
static int
is_importable(PyObject *name, PyObject *module)
{
    PyObject *entry = value_in(importable_modules, name);
    if (entry == NULL || !PyTuple_Check(entry) || PyTuple_GET_SIZE(entry) < 2 || PyTuple_GET_ITEM(entry, 1) != Py_True) {
        return PyErr_Occurred() ? -1 : 0;
    }
    PyObject *found = PyObject_CallNoArgs(PyTuple_GET_ITEM(entry, 0));
    if (found == NULL) {
        return -1;
    }
    Py_DECREF(found); /* sys.modules has it */
    return found == module;
}

/* Whether an object's own name leads to it, as references.find sees that; -1 with an exception. Only what is quickly seen is: for the rest the
 * rules are asked. */
static int
leads_to_itself(PyObject *obj, PyObject *module_name, PyObject *qualname)
{
    if (!PyUnicode_CheckExact(module_name) || !PyUnicode_CheckExact(qualname) ||
        PyUnicode_FindChar(qualname, '.', 0, PyUnicode_GET_LENGTH(qualname), 1) != -1) {
        return 0;
    }
    PyObject *modules = PyImport_GetModuleDict(), *module = value_in(modules, module_name);
    if (module == NULL || !PyModule_Check(module) || Py_TYPE(module)->tp_getattro != PyModule_Type.tp_getattro) {
        return PyErr_Occurred() ? -1 : 0;
    }
    if (value_in(PyModule_GetDict(module), qualname) != obj) {
        return PyErr_Occurred() ? -1 : 0;
    }
    int by_value = any_by_value(modules);
    return by_value ? (by_value < 0 ? -1 : 0) : is_importable(module_name, module);
}

static int
is_named(PyObject *obj)
{
    if (PyFunction_Check(obj)) {
        PyObject *attributes = ((PyFunctionObject *)obj)->func_dict;
        if (attributes != NULL && PyDict_GET_SIZE(attributes) > 0) {
            return 0; /* a library may have marked it as its own */
        }
    }
    else if (!PyType_Check(obj) || !PyType_HasFeature((PyTypeObject *)obj, Py_TPFLAGS_HEAPTYPE)) {
        return 0;
    }
    PyObject *module_name = PyObject_GetAttr(obj, name_module), *qualname = NULL;
    if (module_name != NULL) {
        qualname = PyObject_GetAttr(obj, name_qualname);
    }
    int named = 0;
    if (qualname != NULL) {
        named = leads_to_itself(obj, module_name, qualname);
    }
    else if (PyErr_ExceptionMatches(PyExc_Exception)) {
        PyErr_Clear(); /* the rules will say */
    }
    else {
        named = -1;
    }
    Py_XDECREF(module_name);
    Py_XDECREF(qualname);
    return named;
}

/* ---- ordered dictionaries, and what rules need not be asked about ----------------------------------------------------------------------- */

/* What OrderedDict.__reduce__ says, without the empty parts at its end. That asks copyreg for the slots of the class, each time. */
static PyObject *
reduce_ordered(PyObject *obj)
{
    PyObject **attributes = _PyObject_GetDictPtr(obj);
    if (attributes == NULL || (*attributes != NULL && PyDict_GET_SIZE(*attributes) > 0)) {
        Py_RETURN_NOTIMPLEMENTED;
    }
    PyObject *nothing = PyTuple_New(0), *reduced = NULL;
    if (nothing != NULL && PyDict_GET_SIZE(obj) == 0) {
        reduced = PyTuple_Pack(2, Py_TYPE(obj), nothing);
    }
    else if (nothing != NULL) {
        PyObject *items = PyObject_CallMethod(obj, "items", NULL), *iterator = items == NULL ? NULL : PyObject_GetIter(items);
        if (iterator != NULL) {
            reduced = PyTuple_Pack(5, Py_TYPE(obj), nothing, Py_None, Py_None, iterator);
        }
        Py_XDECREF(items);
        Py_XDECREF(iterator);
    }
    Py_XDECREF(nothing);
    return reduced;
}

/* ---- the override ------------------------------------------------------------------------------------------------------------------- */

/* What the C pickler calls for each object, for the length of one dump. */
typedef struct {
    PyObject_HEAD
    PyObject *pickler;
    PlanTable *plans; /* those of the default registry, or its own */
    PlanTable own;
    int plain; /* whether plain instances are reduced here: from protocol 2 on */
    vectorcallfunc vectorcall;
} Override;

static PyObject *
reduce_by_plan(Override *override, Plan *plan, PyObject *obj)
{
    if (plan->way == WAY_PLAIN) {
        return reduce_plain(plan, obj);
    }
    if (plan->way == WAY_STANDARD) {
        Py_RETURN_NOTIMPLEMENTED;
    }
    if (plan->way == WAY_ORDERED) {
        return reduce_ordered(obj);
    }
    if (plan->way == WAY_CONCERNED) {
        PyObject *names = Py_NewRef(plan->names);
        int concerned = has_attributes_of_concern(obj, names);
        Py_DECREF(names);
        if (concerned <= 0) {
            return concerned < 0 ? NULL : Py_NewRef(Py_NotImplemented);
        }
    }
    PyObject *rules = Py_NewRef(plan->rules); /* the plan may go while Python code runs */
    int named = plan->way == WAY_NAMED ? is_named(obj) : 0;
    if (named != 0) {
        Py_DECREF(rules);
        return named < 0 ? NULL : Py_NewRef(Py_NotImplemented);
    }
    PyObject *arguments[] = {rules, obj, override->pickler};
    PyObject *reduced = PyObject_Vectorcall(by_rules_function, arguments, 3, NULL);
    Py_DECREF(rules);
    return reduced;
}

/* Whether plain instances of a type are the standard library's after all, -1 with an exception. May run Python code. */
static int
plain_is_standard(Override *override, PyTypeObject *type)
{
    if (!override->plain) {
        return 1;
    }
    return PyDict_GetItemWithError(dispatch_table, (PyObject *)type) != NULL ? 1 : PyErr_Occurred() ? -1 : 0;
}

/* A type is asked about that is not known, or not any more. Runs Python code. */
static PyObject *
reduce_unknown(Override *override, PyObject *obj)
{
    PyTypeObject *type = Py_TYPE(obj);
    Plan fresh;
    memset(&fresh, 0, sizeof fresh);
    int kept = 0, current = 0;
    Py_INCREF(type);
    /* Asking may load a library's rules or change the type, and so may another thread meanwhile: ask until nothing changes. */
    for (int attempt = 0; attempt < 4 && !current; attempt++) {
        unsigned int version = type_new_version(type, name_reduce_ex);
        uint64_t generation = rules_generation;
        if (plan_make(&fresh, type, override->pickler, &kept) < 0) {
            plan_clear(&fresh);
            Py_DECREF(type);
            return NULL;
        }
        fresh.version = version;
        current = generation == rules_generation && version == type_version(type);
    }
    int standard = fresh.way == WAY_PLAIN || fresh.way == WAY_ORDERED ? plain_is_standard(override, type) : 0;
    PyObject *reduced = NULL;
    if (standard >= 0) {
        reduced = standard ? Py_NewRef(Py_NotImplemented) : reduce_by_plan(override, &fresh, obj);
    }
    if (reduced != NULL && current && kept && fresh.version != 0 && fresh.version == type_version(type) &&
        plan_keep(override->plans, &fresh) < 0) {
        Py_CLEAR(reduced);
    }
    plan_clear(&fresh);
    Py_DECREF(type);
    return reduced;
}

static PyObject *
override_call(PyObject *self, PyObject *const *args, size_t flags, PyObject *names)
{
    if (PyVectorcall_NARGS(flags) != 1 || (names != NULL && PyTuple_GET_SIZE(names) != 0)) {
        PyErr_SetString(PyExc_TypeError, "a reducer override takes one object");
        return NULL;
    }
    Override *override = (Override *)self;
    Plan *plan = plan_find(override->plans, Py_TYPE(args[0]));
    if (plan != NULL && (plan->way == WAY_PLAIN || plan->way == WAY_ORDERED)) {
        int standard = plain_is_standard(override, Py_TYPE(args[0]));
        if (standard) {
            return standard < 0 ? NULL : Py_NewRef(Py_NotImplemented);
        }
        plan = plan_find(override->plans, Py_TYPE(args[0]));
    }
    return plan != NULL ? reduce_by_plan(override, plan, args[0]) : reduce_unknown(override, args[0]);
}

static int
override_traverse(PyObject *self, visitproc visit, void *arg)
{
    Override *override = (Override *)self;
    Py_VISIT(override->pickler);
    for (size_t i = 0; override->own.plans != NULL && i <= override->own.mask; i++) {
        Py_VISIT(override->own.plans[i].rules);
    }
    return 0;
}

static int
override_clear(PyObject *self)
{
    plans_clear(&((Override *)self)->own);
    return 0;
}

static void
override_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    override_clear(self);
    Py_CLEAR(((Override *)self)->pickler);
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

static PyObject *
override_new(PyObject *pickler, int shared, int plain)
{
    Override *made = PyObject_GC_New(Override, &OverrideType);
    if (made == NULL) {
        return NULL;
    }
    made->pickler = Py_NewRef(pickler);
    memset(&made->own, 0, sizeof made->own);
    made->plans = shared ? &default_plans : &made->own;
    made->plain = plain;
    made->vectorcall = override_call;
    PyObject_GC_Track((PyObject *)made);
    return (PyObject *)made;
}

PyDoc_STRVAR(override_doc,
"override(pickler, shared, plain)\n--\n\n"
"A reducer_override that asks pickler._way_for(cls) once a type. shared: the answers are those of any pickler with the default registry.\n"
"plain: reduce plain instances too.");

static PyObject *
pickling_override(PyObject *module, PyObject *args)
{
    PyObject *pickler;
    int shared, plain;
    if (!PyArg_ParseTuple(args, "Opp", &pickler, &shared, &plain)) {
        return NULL;
    }
    return override_new(pickler, shared, plain);
}

/* ---- the rules alone, for picklers that are not ours ------------------------------------------------------------------------------------ */

/* As pickler.asking's function: the answer for the object's type, or NotImplemented at once where there is none. */
typedef struct {
    PyObject_HEAD
    PyObject *known; /* type -> function that reduces its objects, or None */
    PyObject *find;  /* called with a type that is not known yet */
    vectorcallfunc vectorcall;
} Asking;

static PyObject *
asking_call(PyObject *self, PyObject *const *args, size_t flags, PyObject *names)
{
    if (PyVectorcall_NARGS(flags) != 1 || (names != NULL && PyTuple_GET_SIZE(names) != 0)) {
        PyErr_SetString(PyExc_TypeError, "a reducer override takes one object");
        return NULL;
    }
    Asking *asking = (Asking *)self;
    PyObject *type = (PyObject *)Py_TYPE(args[0]), *answer = NULL;
    if (Py_TYPE(type)->tp_hash == PyType_Type.tp_hash) { /* else a metaclass hashes its types: those are never known */
        answer = PyDict_GetItemWithError(asking->known, type);
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
        answer = PyObject_CallOneArg(asking->find, type);
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
asking_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(((Asking *)self)->known);
    Py_VISIT(((Asking *)self)->find);
    return 0;
}

static int
asking_clear(PyObject *self)
{
    Py_CLEAR(((Asking *)self)->known);
    Py_CLEAR(((Asking *)self)->find);
    return 0;
}

static void
asking_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    asking_clear(self);
    PyObject_GC_Del(self);
}

static PyTypeObject AskingType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "safepickle._native._pickling.Asking",
    .tp_basicsize = sizeof(Asking),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_vectorcall_offset = offsetof(Asking, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_dealloc = asking_dealloc,
    .tp_traverse = asking_traverse,
    .tp_clear = asking_clear,
    .tp_doc = "What the C pickler asks about each object.",
};

PyDoc_STRVAR(asking_doc,
"asking(known, find)\n--\n\n"
"A reducer_override: known maps types to functions or None, find is called with a type that is not in it.");

static PyObject *
pickling_asking(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    if (count != 2 || !PyDict_CheckExact(args[0]) || !PyCallable_Check(args[1])) {
        PyErr_SetString(PyExc_TypeError, "asking takes a dict and a callable");
        return NULL;
    }
    Asking *made = PyObject_GC_New(Asking, &AskingType);
    if (made == NULL) {
        return NULL;
    }
    Py_INCREF(args[0]);
    Py_INCREF(args[1]);
    made->known = args[0];
    made->find = args[1];
    made->vectorcall = asking_call;
    PyObject_GC_Track((PyObject *)made);
    return (PyObject *)made;
}

/* ---- a file in memory ----------------------------------------------------------------------------------------------------------------- */

/* What pickler._Sink is to a file, and the file. The first piece is kept as it is: a small pickle has no other. */
typedef struct {
    PyObject_HEAD
    PyObject *data; /* bytes, or NULL */
    Py_ssize_t size; /* how much of it is written */
    int owned;       /* whether it is ours to write into */
} Sink;

#define LARGE (1 << 20)

static PyObject *
sink_write(PyObject *self, PyObject *piece)
{
    Sink *sink = (Sink *)self;
    if (sink->data == NULL && PyBytes_CheckExact(piece)) {
        sink->data = Py_NewRef(piece);
        sink->size = PyBytes_GET_SIZE(piece);
        sink->owned = 0;
        return PyLong_FromSsize_t(sink->size);
    }
    Py_buffer buffer;
    if (PyObject_GetBuffer(piece, &buffer, PyBUF_SIMPLE) < 0) {
        return NULL;
    }
    if (buffer.len > PY_SSIZE_T_MAX / 2 - sink->size) {
        PyBuffer_Release(&buffer);
        return PyErr_NoMemory();
    }
    Py_ssize_t needed = sink->size + buffer.len;
    Py_ssize_t room = needed + (needed < LARGE ? needed / 2 : needed / 16) + 64; /* moving a large block copies nothing */
    if (sink->data == NULL || !sink->owned) {
        PyObject *own = PyBytes_FromStringAndSize(NULL, room);
        if (own == NULL) {
            PyBuffer_Release(&buffer);
            return NULL;
        }
        if (sink->size > 0) {
            memcpy(PyBytes_AS_STRING(own), PyBytes_AS_STRING(sink->data), sink->size);
        }
        Py_XSETREF(sink->data, own);
        sink->owned = 1;
    }
    else if (needed > PyBytes_GET_SIZE(sink->data) && _PyBytes_Resize(&sink->data, room) < 0) {
        sink->size = 0;
        PyBuffer_Release(&buffer);
        return NULL;
    }
    memcpy(PyBytes_AS_STRING(sink->data) + sink->size, buffer.buf, buffer.len);
    sink->size = needed;
    needed = buffer.len;
    PyBuffer_Release(&buffer);
    return PyLong_FromSsize_t(needed);
}

static void
sink_empty(Sink *sink)
{
    sink->size = 0;
    Py_CLEAR(sink->data);
}

/* What was written; the sink is empty after it. */
static PyObject *
sink_take(Sink *sink)
{
    PyObject *data = sink->data;
    Py_ssize_t size = sink->size;
    sink->data = NULL;
    sink->size = 0;
    if (data == NULL) {
        return PyBytes_FromStringAndSize(NULL, 0);
    }
    if (PyBytes_GET_SIZE(data) != size) {
        _PyBytes_Resize(&data, size);
    }
    return data;
}

static PyObject *
sink_begin(PyObject *self, PyObject *unused)
{
    sink_empty((Sink *)self);
    Py_RETURN_NONE;
}

static PyObject *
sink_rewind(PyObject *self, PyObject *unused)
{
    sink_empty((Sink *)self);
    Py_RETURN_TRUE;
}

static void
sink_dealloc(PyObject *self)
{
    sink_empty((Sink *)self);
    PyObject_Free(self);
}

static PyMethodDef sink_methods[] = {
    {"write", sink_write, METH_O, "write(data)\n--\n\nAdd to what was written."},
    {"begin", sink_begin, METH_NOARGS, "begin()\n--\n\nA dump begins here."},
    {"rewind", sink_rewind, METH_NOARGS, "rewind()\n--\n\nTake back what was written: True."},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject SinkType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "safepickle._native._pickling.Sink",
    .tp_basicsize = sizeof(Sink),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_dealloc = sink_dealloc,
    .tp_methods = sink_methods,
    .tp_doc = "A file in memory.",
};

/* ---- plain data --------------------------------------------------------------------------------------------------------------------------- */

/* A pickler with a file, as every one with an override is, copies what it writes once more than pickle.dumps does. That is most of the time
 * where strings are long, but not so long that they go to the file as they are. So objects are looked through for anything that the override
 * would be asked about, as long as that costs next to nothing: as long as there are few of them, or many bytes in each. */
typedef struct {
    size_t objects, bytes;
} Look;

#define FEW_OBJECTS 64
#define MANY_BYTES 256 /* in an object, on an average */
#define GOES_AS_IT_IS (1 << 16)
#define MOST_LEVELS 20

static int only_data(Look *look, PyObject *x, int level);

static int
only_data_in(Look *look, PyObject *const *items, Py_ssize_t count, int level)
{
    for (Py_ssize_t i = 0; i < count; i++) {
        if (!only_data(look, items[i], level)) {
            return 0;
        }
    }
    return 1;
}

/* Whether an object is made of builtin containers and values that the C pickler writes without asking. Runs no Python code. */
static int
only_data(Look *look, PyObject *x, int level)
{
    PyTypeObject *type = Py_TYPE(x);
    if (++look->objects > FEW_OBJECTS && look->bytes < look->objects * MANY_BYTES) {
        return 0;
    }
    Py_ssize_t size = 0;
    if (type == &PyUnicode_Type) {
        size = PyUnicode_GET_LENGTH(x);
    }
    else if (type == &PyBytes_Type) {
        size = PyBytes_GET_SIZE(x);
    }
    else if (type == &PyLong_Type || type == &PyFloat_Type || type == &PyBool_Type || x == Py_None) {
        return 1;
    }
    else if (level >= MOST_LEVELS) {
        return 0;
    }
    else if (type == &PyList_Type) {
        return only_data_in(look, ((PyListObject *)x)->ob_item, PyList_GET_SIZE(x), level + 1);
    }
    else if (type == &PyTuple_Type) {
        return only_data_in(look, ((PyTupleObject *)x)->ob_item, PyTuple_GET_SIZE(x), level + 1);
    }
    else if (type == &PyDict_Type) {
        Py_ssize_t at = 0;
        PyObject *key, *value;
        while (PyDict_Next(x, &at, &key, &value)) {
            if (!only_data(look, key, level + 1) || !only_data(look, value, level + 1)) {
                return 0;
            }
        }
        return 1;
    }
    else {
        return 0;
    }
    look->bytes += size;
    return size < GOES_AS_IT_IS;
}

/* The pickle of plain data; NULL without an exception where it is not known to be that, or its pickler fails. */
static PyObject *
dumps_data(PyObject *obj, PyObject *protocol)
{
    Look look = {0, 0};
    if (!only_data(&look, obj, 0)) {
        return NULL;
    }
    PyObject *arguments[] = {obj, protocol};
    PyObject *data = PyObject_Vectorcall(dumps_function, arguments, 2, NULL);
    if (data == NULL && PyErr_ExceptionMatches(PyExc_Exception)) {
        PyErr_Clear(); /* it fails once more, and is told where */
    }
    return data;
}

/* ---- dumps ------------------------------------------------------------------------------------------------------------------------------ */

/* A pickler that no dump uses, and what belongs to it. */
typedef struct {
    PyObject *pickler;
    PyObject *attributes; /* its __dict__ */
    Py_ssize_t count;     /* how many of them there are when it is new */
    Sink *sink;
} Spare;

#define MOST_PROTOCOLS 6
static Spare spares[MOST_PROTOCOLS];

static void
spare_drop(Spare *spare)
{
    Py_CLEAR(spare->pickler);
    Py_CLEAR(spare->attributes);
    Py_CLEAR(spare->sink);
}

static int
spare_make(Spare *spare, long protocol)
{
    memset(spare, 0, sizeof *spare);
    spare->sink = PyObject_New(Sink, &SinkType);
    if (spare->sink == NULL) {
        return -1;
    }
    spare->sink->data = NULL;
    spare->sink->size = 0;
    PyObject *number = PyLong_FromLong(protocol);
    if (number != NULL) {
        spare->pickler = PyObject_CallFunctionObjArgs(spare_function, (PyObject *)spare->sink, number, NULL);
        Py_DECREF(number);
    }
    PyObject *override = spare->pickler == NULL ? NULL : override_new(spare->pickler, 1, protocol >= 2);
    if (override != NULL) {
        spare->attributes = PyObject_GenericGetDict(spare->pickler, NULL);
        if (spare->attributes != NULL && (PyDict_SetItem(spare->attributes, name_reducer_override, override) < 0 ||
                                          PyDict_SetItem(spare->attributes, name_root, Py_None) < 0)) {
            Py_CLEAR(spare->attributes);
        }
        Py_DECREF(override);
    }
    if (spare->attributes == NULL) {
        spare_drop(spare);
        return -1;
    }
    spare->count = PyDict_GET_SIZE(spare->attributes);
    return 0;
}

/* Above this many bytes the memo may have grown: clearing it takes as long as it is large, and would do so after each small dump to come. */
#define SMALL 256
/* Above this many, where there are no frames, the pickler's buffer has: it would be as large for each small dump to come. */
#define LARGE_WITHOUT_FRAMES (1 << 16)
#define FIRST_WITH_FRAMES 4

/* Forget the dump, and keep the pickler for the next one if it is as it was. */
static void
spare_return(Spare *spare, long protocol, Py_ssize_t written)
{
    int good = PyDict_SetItem(spare->attributes, name_root, Py_None) == 0;
    if (good && written <= SMALL) {
        PyObject *done = PyObject_CallOneArg(clear_memo_method, spare->pickler);
        good = done != NULL;
        Py_XDECREF(done);
    }
    else if (good) {
        PyObject *empty = PyDict_New();
        good = empty != NULL && PyObject_SetAttr(spare->pickler, name_memo, empty) == 0;
        Py_XDECREF(empty);
    }
    if (!good) {
        PyErr_Clear(); /* the pickle is written */
    }
    /* One reference is ours and one the override's: a rule that kept the pickler, or left something on it, has it. */
    good = good && (protocol >= FIRST_WITH_FRAMES || written <= LARGE_WITHOUT_FRAMES) && Py_REFCNT(spare->pickler) == 2 && PyDict_GET_SIZE(spare->attributes) == spare->count;
    if (good && spares[protocol].pickler == NULL) {
        spares[protocol] = *spare;
    }
    else {
        /* As at the end of Pickler.dump: the override refers to its pickler, and a circle would keep what was pickled by value. */
        PyObject *of_one_dump[] = {name_reducer_override, name_root, name_by_value};
        for (size_t i = 0; i < sizeof of_one_dump / sizeof *of_one_dump; i++) {
            if (PyDict_DelItem(spare->attributes, of_one_dump[i]) < 0) {
                PyErr_Clear();
            }
        }
        spare_drop(spare);
    }
}

/* Bind rules that wait for a module which has been imported meanwhile: registry.refresh(), where there may be any. */
static int
refresh(void)
{
    static Py_ssize_t modules_seen = -1;
    static uint64_t generation_seen;
    Py_ssize_t modules = PyDict_GET_SIZE(PyImport_GetModuleDict());
    if (modules == modules_seen && generation_seen == rules_generation) {
        return 0;
    }
    PyObject *done = PyObject_CallOneArg(refreshed_function, default_registry);
    if (done == NULL) {
        return -1;
    }
    modules_seen = done == Py_True ? modules : -1;
    generation_seen = rules_generation;
    Py_DECREF(done);
    return 0;
}

/* The dump has raised: -1 with an exception, or 0 where it was done in another way. */
static int
dump_failed(Spare *spare, PyObject *obj)
{
    PyObject *type, *error, *traceback;
    PyErr_Fetch(&type, &error, &traceback);
    PyErr_NormalizeException(&type, &error, &traceback);
    if (!PyErr_GivenExceptionMatches(type, PyExc_Exception)) {
        PyErr_Restore(type, error, traceback);
        return -1;
    }
    if (traceback != NULL) {
        PyException_SetTraceback(error, traceback);
    }
    PyObject *done = PyObject_CallFunctionObjArgs(failed_function, spare->pickler, error, obj, NULL);
    Py_XDECREF(type);
    Py_XDECREF(error);
    Py_XDECREF(traceback);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

PyDoc_STRVAR(dumps_doc,
"dumps(obj, protocol)\n--\n\n"
"As pickler.dumps with the default registry; NotImplemented for a protocol that is none.");

static PyObject *
pickling_dumps(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    if (count != 2) {
        PyErr_SetString(PyExc_TypeError, "dumps takes two arguments");
        return NULL;
    }
    long protocol = default_protocol;
    if (args[1] != Py_None) {
        int overflow = 1;
        protocol = PyLong_CheckExact(args[1]) ? PyLong_AsLongAndOverflow(args[1], &overflow) : 0;
        if (overflow || protocol > highest_protocol || protocol >= MOST_PROTOCOLS) {
            Py_RETURN_NOTIMPLEMENTED;
        }
        if (protocol < 0) {
            protocol = highest_protocol;
        }
    }
    if (protocol >= FIRST_WITH_FRAMES) {
        PyObject *data = dumps_data(args[0], args[1]);
        if (data != NULL || PyErr_Occurred()) {
            return data;
        }
    }
    if (refresh() < 0) {
        return NULL;
    }
    Spare spare = spares[protocol]; /* a reducer may call dumps, and another thread: nobody else has it now */
    memset(&spares[protocol], 0, sizeof(Spare));
    if (spare.pickler == NULL && spare_make(&spare, protocol) < 0) {
        return NULL;
    }
    PyObject *data = NULL;
    if (PyDict_SetItem(spare.attributes, name_root, args[0]) == 0) {
        PyObject *arguments[] = {spare.pickler, args[0]};
        PyObject *done = PyObject_Vectorcall(dump_method, arguments, 2, NULL);
        if (done != NULL) {
            Py_DECREF(done);
            data = sink_take(spare.sink);
            if (data != NULL) {
                spare_return(&spare, protocol, PyBytes_GET_SIZE(data));
                return data;
            }
        }
        else if (dump_failed(&spare, args[0]) == 0) {
            data = sink_take(spare.sink);
        }
    }
    PyObject *type, *error, *traceback;
    PyErr_Fetch(&type, &error, &traceback);
    PyDict_Clear(spare.attributes); /* the override refers to its pickler */
    spare_drop(&spare);
    PyErr_Restore(type, error, traceback);
    return data;
}

/* ---- calls from Python -------------------------------------------------------------------------------------------------------------- */

PyDoc_STRVAR(invalidate_doc, "invalidate()\n--\n\nForget how types are reduced: a rule has changed.");

static PyObject *
pickling_invalidate(PyObject *module, PyObject *unused)
{
    rules_generation++;
    Py_RETURN_NONE;
}

static int
take_from(const char *module_name, const char *const *names, PyObject **const *slots)
{
    PyObject *module = PyImport_ImportModule(module_name);
    int failed = module == NULL ? -1 : 0;
    for (; !failed && *names != NULL; names++, slots++) {
        failed = take(module, *names, *slots);
    }
    Py_XDECREF(module);
    return failed;
}

PyDoc_STRVAR(setup_doc,
"setup(pickler, registry)\n--\n\n"
"Tell the module where the functions are that it calls. Returns the numbers of the ways to reduce.");

static PyObject *
pickling_setup(PyObject *module, PyObject *args)
{
    PyObject *pickler, *registry;
    if (!PyArg_ParseTuple(args, "OO", &pickler, &registry)) {
        return NULL;
    }
    if (default_registry != NULL) {
        PyErr_SetString(PyExc_ImportError, "the native pickling module serves another copy of safepickle in this process");
        return NULL;
    }
    static const char *const of_copyreg[] = {"__newobj__", "dispatch_table", NULL};
    PyObject **const copyreg_slots[] = {&newobj_function, &dispatch_table};
    PyObject *base = NULL, *numbers[2] = {NULL, NULL};
    static const char *const of_c_pickle[] = {"dumps", NULL}; /* pickle.dumps may be somebody's replacement, even ours */
    PyObject **const c_pickle_slots[] = {&dumps_function};
    static const char *const of_references[] = {"_importable_cache", NULL};
    PyObject **const reference_slots[] = {&importable_modules};
    static const char *const of_pickle[] = {"Pickler", "DEFAULT_PROTOCOL", "HIGHEST_PROTOCOL", NULL};
    PyObject **const pickle_slots[] = {&base, &numbers[0], &numbers[1]};
    int failed = take_from("copyreg", of_copyreg, copyreg_slots) < 0 || take_from("_pickle", of_c_pickle, c_pickle_slots) < 0 || take_from("pickle", of_pickle, pickle_slots) < 0 ||
                 take(base, "dump", &dump_method) < 0 || take(base, "clear_memo", &clear_memo_method) < 0 ||
                 take(pickler, "_reduced", &by_rules_function) < 0 || take(pickler, "_spare", &spare_function) < 0 ||
                 take(pickler, "_failed", &failed_function) < 0 || take(registry, "refreshed", &refreshed_function) < 0 ||
                 take_from("safepickle.references", of_references, reference_slots) < 0;
    if (!failed) {
        default_protocol = PyLong_AsLong(numbers[0]);
        highest_protocol = PyLong_AsLong(numbers[1]);
        failed = PyErr_Occurred() != NULL;
    }
    Py_XDECREF(base);
    Py_XDECREF(numbers[0]);
    Py_XDECREF(numbers[1]);
    if (failed || take(registry, "default_registry", &default_registry) < 0) {
        return NULL;
    }
    return Py_BuildValue("{sisisisisisi}", "standard", WAY_STANDARD, "plain", WAY_PLAIN, "rules", WAY_RULES, "named", WAY_NAMED,
                         "concerned", WAY_CONCERNED, "ordered", WAY_ORDERED);
}

/* ---- the module ------------------------------------------------------------------------------------------------------------------- */

static PyMethodDef methods[] = {
    {"asking", (PyCFunction)(void (*)(void))pickling_asking, METH_FASTCALL, asking_doc},
    {"override", pickling_override, METH_VARARGS, override_doc},
    {"dumps", (PyCFunction)(void (*)(void))pickling_dumps, METH_FASTCALL, dumps_doc},
    {"invalidate", pickling_invalidate, METH_NOARGS, invalidate_doc},
    {"setup", pickling_setup, METH_VARARGS, setup_doc},
    {NULL, NULL, 0, NULL},
};

static int
intern(const char *text, PyObject **slot)
{
    if (*slot == NULL) {
        *slot = PyUnicode_InternFromString(text);
    }
    return *slot == NULL ? -1 : 0;
}

static int
module_exec(PyObject *module)
{
    if (PyInterpreterState_Get() != PyInterpreterState_Main()) {
        PyErr_SetString(PyExc_ImportError, "the native pickling module serves the main interpreter only");
        return -1;
    }
    if (intern("__reduce_ex__", &name_reduce_ex) < 0 || intern("__getstate__", &name_getstate) < 0 ||
        intern("_way_for", &name_way_for) < 0 || intern("reducer_override", &name_reducer_override) < 0 ||
        intern("cloudpickle.cloudpickle", &name_cloudpickle) < 0 ||
        intern("_PICKLE_BY_VALUE_MODULES", &name_by_value_modules) < 0 || intern("__module__", &name_module) < 0 ||
        intern("__qualname__", &name_qualname) < 0 || intern("_root", &name_root) < 0 || intern("memo", &name_memo) < 0 || intern("_by_value", &name_by_value) < 0) {
        return -1;
    }
    if (PyType_Ready(&OverrideType) < 0 || PyType_Ready(&AskingType) < 0 || PyType_Ready(&SinkType) < 0) {
        return -1;
    }
    return PyModule_AddIntConstant(module, "INTERFACE", SAFEPICKLE_PICKLING_INTERFACE);
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
    .m_doc = "What the C pickler asks about each object, and dumps.",
    .m_size = 0,
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC
PyInit__pickling(void)
{
    return PyModuleDef_Init(&definition);
}
