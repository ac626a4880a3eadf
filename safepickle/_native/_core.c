/* The copier of safepickle/copier.py in C. That module is the definition; this one is its twin and agrees with it, exceptions
 * included: one test suite runs on both.
 *
 * What makes it fast: exact builtin containers and plain instances are copied without a reduce value; the memo is a table of pointers that
 * becomes a real dictionary only when Python code gets to see it; objects that only one container refers to are not even looked up; the
 * garbage collector, which would find nothing, pauses while objects are made.
 *
 * What makes it safe: Python code runs only in calls that are preceded by `memo_expose`; every path that may run Python code re-reads
 * what it iterates over; the depth is limited by the stack that is left, not by a count.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef Py_GIL_DISABLED
#error "the native copier needs the GIL: build without it, the Python copier serves free-threaded interpreters"
#endif

#if defined(__linux__) && defined(__GLIBC__)
#include <pthread.h>
#define HAVE_STACK_LIMIT 1
#endif

/* ---- differences between versions of Python ------------------------------------------------------------------------------ */

#if PY_VERSION_HEX >= 0x030c0000
#define MEMBER_OBJECT_EX Py_T_OBJECT_EX
#else
#include <structmember.h>
#define MEMBER_OBJECT_EX T_OBJECT_EX
#endif

/* 0 where the type has no version that could be relied on: then nothing about it is cached. */
static unsigned int
type_version(PyTypeObject *type)
{
#if PY_VERSION_HEX >= 0x030c0000
    if (type->tp_version_tag == 0 && !PyUnstable_Type_AssignVersionTag(type)) {
        return 0;
    }
    return type->tp_version_tag;
#else
    return PyType_HasFeature(type, Py_TPFLAGS_VALID_VERSION_TAG) ? type->tp_version_tag : 0;
#endif
}

/* ---- what the module knows -------------------------------------------------------------------------------------------------- */

typedef enum {
    KIND_UNKNOWN = 0,
    KIND_ATOMIC,
    KIND_LIST,
    KIND_DICT,
    KIND_TUPLE,
    KIND_SET,
    KIND_FROZENSET,
    KIND_BYTEARRAY,
    KIND_PLAIN,
    KIND_ORDERED_DICT,
    KIND_RULES,
    KIND_PROTOCOL,
} Kind;

/* How objects of one type are copied. */
typedef struct {
    PyTypeObject *type; /* borrowed: the version tells whether it is still that type */
    unsigned int version;
    int has_dict;
    Kind kind;
    PyObject *rules;      /* KIND_RULES: a tuple of plans (mode, function, with_pickler, rule) */
    Kind fallback;        /* KIND_RULES: what serves when every rule declines */
    Py_ssize_t *offsets;  /* KIND_PLAIN: where the slots are */
    Py_ssize_t slots;
} Plan;

typedef struct {
    Plan *plans;
    size_t mask;
    size_t used;
    uint64_t generation; /* the registry's, at the time when the table was filled */
} PlanTable;

static PlanTable default_plans;
static uint64_t rules_generation = 1;

static PyObject *plan_function;      /* copier._native_plan(cls, registry) -> tuple */
static PyObject *expose_function;    /* copier._expose(registry, memo, root, options): Python code finds the call by its memo */
static PyObject *forget_function;    /* copier._forget(memo) */
static PyObject *default_registry;
static PyObject *check_function;     /* errors.check_reduced(rule, x, reduced) */
static PyObject *state_function;     /* copier.set_state(y, state, setter) */
static PyObject *reduce_function;    /* copier.reduce_by_protocol(x, cls) */
static PyObject *dispatch_table;     /* copyreg.dispatch_table */
static PyObject *empty_tuple;
static PyObject *name_deepcopy, *name_reduce_ex, *name_append, *name_dict;

/* ---- the memo ------------------------------------------------------------------------------------------------------------------ */

typedef struct {
    PyObject *source; /* owned in the table, borrowed in the log */
    PyObject *copy;   /* owned */
} Pair;

typedef struct Run {
    struct Run *outer;    /* runs that are in progress, all threads, under the GIL */
    PyObject *registry;
    PyObject *options;    /* NULL or a dict */
    PyObject *root;
    PyObject *dict;       /* the memo once Python code has seen it; then the table and the log are empty */
    PyObject *keep;       /* the list dict[id(dict)] */
    int announced;        /* expose_function was called: Python code finds the run by its memo */
    Pair *table;
    size_t mask;
    size_t used;
    Pair *log;            /* objects that only one container refers to */
    size_t logged;
    size_t log_room;
    PlanTable *plans;
    PlanTable own_plans;
    char *stack_limit;
    int exposed;
} Run;

static Run *runs;

static inline size_t
pointer_hash(const void *pointer)
{
    uintptr_t bits = (uintptr_t)pointer >> 4;
    return (size_t)(bits ^ (bits >> 15) ^ (bits << 7));
}

static int
table_grow(Run *run)
{
    size_t size = run->table ? (run->mask + 1) * 2 : 64;
    Pair *bigger = PyMem_Calloc(size, sizeof(Pair));
    if (bigger == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    if (run->table) {
        for (size_t i = 0; i <= run->mask; i++) {
            Pair pair = run->table[i];
            if (pair.source == NULL) {
                continue;
            }
            size_t at = pointer_hash(pair.source) & (size - 1);
            while (bigger[at].source != NULL) {
                at = (at + 1) & (size - 1);
            }
            bigger[at] = pair;
        }
        PyMem_Free(run->table);
    }
    run->table = bigger;
    run->mask = size - 1;
    return 0;
}

static int
table_add(Run *run, PyObject *source, PyObject *copy)
{
    if (run->table == NULL || run->used * 3 >= run->mask * 2) {
        if (table_grow(run) < 0) {
            return -1;
        }
    }
    size_t at = pointer_hash(source) & run->mask;
    while (run->table[at].source != NULL) {
        if (run->table[at].source == source) {
            Py_INCREF(copy);
            Py_SETREF(run->table[at].copy, copy);
            return 0;
        }
        at = (at + 1) & run->mask;
    }
    Py_INCREF(source);
    Py_INCREF(copy);
    run->table[at].source = source;
    run->table[at].copy = copy;
    run->used++;
    return 0;
}

static int
log_add(Run *run, PyObject *source, PyObject *copy)
{
    if (run->logged == run->log_room) {
        size_t room = run->log_room ? run->log_room * 2 : 64;
        Pair *bigger = PyMem_Realloc(run->log, room * sizeof(Pair));
        if (bigger == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        run->log = bigger;
        run->log_room = room;
    }
    run->log[run->logged].source = source;
    Py_INCREF(copy);
    run->log[run->logged].copy = copy;
    run->logged++;
    return 0;
}

static int
dict_add(Run *run, PyObject *source, PyObject *copy)
{
    PyObject *key = PyLong_FromVoidPtr(source);
    if (key == NULL) {
        return -1;
    }
    int failed = PyDict_SetItem(run->dict, key, copy);
    Py_DECREF(key);
    return failed;
}

/* Keep the source alive as long as the memo: memo[id(memo)] is the list of the kept. */
static int
dict_keep(Run *run, PyObject *source)
{
    if (run->keep == NULL) {
        PyObject *key = PyLong_FromVoidPtr(run->dict);
        if (key == NULL) {
            return -1;
        }
        PyObject *found = PyDict_GetItemWithError(run->dict, key);
        if (found != NULL && PyList_CheckExact(found)) {
            Py_INCREF(found);
        }
        else if (PyErr_Occurred()) {
            Py_DECREF(key);
            return -1;
        }
        else {
            found = PyList_New(0);
            if (found == NULL || PyDict_SetItem(run->dict, key, found) < 0) {
                Py_XDECREF(found);
                Py_DECREF(key);
                return -1;
            }
        }
        Py_DECREF(key);
        run->keep = found;
    }
    return PyList_Append(run->keep, source);
}

static int
memo_spill(Run *run, PyObject *source, PyObject *copy)
{
    if (dict_add(run, source, copy) < 0) {
        return -1;
    }
    return source == copy ? 0 : dict_keep(run, source);
}

/* Before Python code runs that may see the memo: make it a real dictionary, which is the only memo from then on. */
static int
memo_expose(Run *run)
{
    if (run->exposed) {
        return 0;
    }
    if (run->dict == NULL) {
        run->dict = PyDict_New();
        if (run->dict == NULL) {
            return -1;
        }
    }
    PyObject *options = run->options ? run->options : Py_None;
    PyObject *call = PyObject_CallFunctionObjArgs(expose_function, run->registry, run->dict, run->root, options, NULL);
    if (call == NULL) {
        return -1;
    }
    Py_DECREF(call);
    run->announced = 1;
    run->exposed = 1;
    for (size_t i = 0; i < run->logged; i++) {
        if (memo_spill(run, run->log[i].source, run->log[i].copy) < 0) {
            return -1;
        }
    }
    for (size_t i = 0; run->table != NULL && i <= run->mask; i++) {
        if (run->table[i].source != NULL && memo_spill(run, run->table[i].source, run->table[i].copy) < 0) {
            return -1;
        }
    }
    return 0;
}

/* The copy of an object that was seen before, borrowed; NULL without an exception where there is none. */
static PyObject *
memo_get(Run *run, PyObject *source)
{
    if (run->exposed) {
        PyObject *key = PyLong_FromVoidPtr(source);
        if (key == NULL) {
            return NULL;
        }
        PyObject *found = PyDict_GetItemWithError(run->dict, key);
        Py_DECREF(key);
        return found;
    }
    if (run->table == NULL) {
        return NULL;
    }
    size_t at = pointer_hash(source) & run->mask;
    while (run->table[at].source != NULL) {
        if (run->table[at].source == source) {
            return run->table[at].copy;
        }
        at = (at + 1) & run->mask;
    }
    return NULL;
}

/* Enter a copy that is still being filled: cycles lead to it. */
static int
memo_set(Run *run, PyObject *source, PyObject *copy)
{
    if (run->exposed) {
        return dict_add(run, source, copy);
    }
    /* Only the container that we came from refers to it, so nobody asks for it again unless Python code does. */
    if (Py_REFCNT(source) == 1) {
        return log_add(run, source, copy);
    }
    return table_add(run, source, copy);
}

/* What `_copy` does at its end: enter the copy for good, and keep the original alive. */
static int
memo_finish(Run *run, PyObject *source, PyObject *copy, int entered)
{
    if (source == copy) {
        return 0;
    }
    if (!run->exposed) {
        return entered ? 0 : memo_set(run, source, copy);
    }
    if (dict_add(run, source, copy) < 0) {
        return -1;
    }
    return dict_keep(run, source);
}

/* ---- plans: how objects of a type are copied ------------------------------------------------------------------------------------- */

static void
plan_clear(Plan *plan)
{
    Py_CLEAR(plan->rules);
    PyMem_Free(plan->offsets);
    memset(plan, 0, sizeof(Plan));
}

static void
plans_clear(PlanTable *table)
{
    for (size_t i = 0; table->plans != NULL && i <= table->mask; i++) {
        plan_clear(&table->plans[i]);
    }
    PyMem_Free(table->plans);
    memset(table, 0, sizeof(PlanTable));
}

static int
plans_grow(PlanTable *table)
{
    size_t size = table->plans ? (table->mask + 1) * 2 : 64;
    Plan *bigger = PyMem_Calloc(size, sizeof(Plan));
    if (bigger == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    size_t used = 0;
    for (size_t i = 0; table->plans != NULL && i <= table->mask; i++) {
        Plan plan = table->plans[i];
        if (plan.type == NULL) {
            continue;
        }
        size_t at = pointer_hash(plan.type) & (size - 1);
        while (bigger[at].type != NULL) {
            at = (at + 1) & (size - 1);
        }
        bigger[at] = plan;
        used++;
    }
    PyMem_Free(table->plans);
    table->plans = bigger;
    table->mask = size - 1;
    table->used = used;
    return 0;
}

static int
plan_read_slots(Plan *plan, PyObject *members)
{
    Py_ssize_t count = PyTuple_GET_SIZE(members);
    plan->slots = count;
    if (count == 0) {
        return 0;
    }
    plan->offsets = PyMem_Malloc(count * sizeof(Py_ssize_t));
    if (plan->offsets == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *member = PyTuple_GET_ITEM(members, i);
        if (Py_TYPE(member) != &PyMemberDescr_Type || ((PyMemberDescrObject *)member)->d_member->type != MEMBER_OBJECT_EX) {
            plan->kind = KIND_PROTOCOL;
            return 0;
        }
        plan->offsets[i] = ((PyMemberDescrObject *)member)->d_member->offset;
    }
    return 0;
}

/* Ask Python once how objects of a type are copied. */
static int
plan_make(Plan *plan, PyTypeObject *type, PyObject *registry)
{
    PyObject *answer = PyObject_CallFunctionObjArgs(plan_function, (PyObject *)type, registry, NULL);
    if (answer == NULL) {
        return -1;
    }
    int kind, fallback, has_dict;
    PyObject *rules, *members;
    if (!PyArg_ParseTuple(answer, "iiiO!O!", &kind, &fallback, &has_dict, &PyTuple_Type, &rules, &PyTuple_Type, &members)) {
        Py_DECREF(answer);
        return -1;
    }
    plan->type = type;
    plan->kind = (Kind)kind;
    plan->fallback = (Kind)fallback;
    plan->has_dict = has_dict;
    if (PyTuple_GET_SIZE(rules) > 0) {
        Py_INCREF(rules);
        plan->rules = rules;
    }
    int failed = plan_read_slots(plan, members);
    Py_DECREF(answer);
    return failed;
}

/* The plan for a type. It is valid until Python code runs; NULL with an exception on failure. */
static Plan *
plan_for(Run *run, PyTypeObject *type)
{
    PlanTable *table = run->plans;
    if (table == &default_plans && table->generation != rules_generation) {
        plans_clear(table);
        table->generation = rules_generation;
    }
    unsigned int version = type->tp_version_tag;
    if (table->plans != NULL) {
        size_t at = pointer_hash(type) & table->mask;
        while (table->plans[at].type != NULL) {
            Plan *plan = &table->plans[at];
            if (plan->type == type) {
                if (version != 0 && plan->version == version && type_version(type) == version) {
                    return plan;
                }
                break;
            }
            at = (at + 1) & table->mask;
        }
    }
    Plan fresh;
    memset(&fresh, 0, sizeof fresh);
    if (plan_make(&fresh, type, run->registry) < 0) {
        plan_clear(&fresh);
        return NULL;
    }
    if (table == &default_plans && table->generation != rules_generation) {
        plans_clear(table); /* asking has loaded a library's rules */
        table->generation = rules_generation;
    }
    if (table->plans == NULL || table->used * 3 >= table->mask * 2) {
        if (plans_grow(table) < 0) {
            plan_clear(&fresh);
            return NULL;
        }
    }
    _PyType_Lookup(type, name_deepcopy); /* gives the type a version, if it can have one */
    fresh.version = type_version(type);
    size_t at = pointer_hash(type) & table->mask;
    while (table->plans[at].type != NULL && table->plans[at].type != type) {
        at = (at + 1) & table->mask;
    }
    if (table->plans[at].type == NULL) {
        table->used++;
    }
    else {
        plan_clear(&table->plans[at]);
    }
    table->plans[at] = fresh;
    return &table->plans[at];
}

/* ---- copying ---------------------------------------------------------------------------------------------------------------- */

static PyObject *copy_object(Run *run, PyObject *x);

static int
stack_is_low(Run *run)
{
#ifdef HAVE_STACK_LIMIT
    char here;
    if (&here < run->stack_limit) {
        PyErr_SetString(PyExc_RecursionError, "maximum recursion depth exceeded while copying");
        return 1;
    }
    return 0;
#else
    return Py_EnterRecursiveCall(" while copying");
#endif
}

static inline void
stack_leave(void)
{
#ifndef HAVE_STACK_LIMIT
    Py_LeaveRecursiveCall();
#endif
}

static PyObject *
copy_list(Run *run, PyObject *x)
{
    PyObject *y = PyList_New(0);
    if (y == NULL || memo_set(run, x, y) < 0) {
        Py_XDECREF(y);
        return NULL;
    }
    /* Python code may change the list while it is copied: its length is read anew, as a `for` loop does. */
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(x); i++) {
        PyObject *item = PyList_GET_ITEM(x, i);
        PyObject *copied = copy_object(run, item);
        if (copied == NULL) {
            Py_DECREF(y);
            return NULL;
        }
        int failed = PyList_Append(y, copied);
        Py_DECREF(copied);
        if (failed) {
            Py_DECREF(y);
            return NULL;
        }
    }
    return y;
}

static int
changed_size(void)
{
    PyErr_SetString(PyExc_RuntimeError, "dictionary changed size during iteration");
    return -1;
}

/* Copy the items of a dictionary into another one. */
static int
copy_items(Run *run, PyObject *x, PyObject *y)
{
    Py_ssize_t position = 0, size = PyDict_GET_SIZE(x);
    PyObject *key, *value;
    while (PyDict_Next(x, &position, &key, &value)) {
        Py_INCREF(key); /* not the value: how many refer to it tells whether it can be met again */
        PyObject *new_key = copy_object(run, key), *new_value = NULL;
        /* The key's __hash__ and __eq__ may be Python code. */
        if (new_key != NULL && new_key != key && memo_expose(run) < 0) {
            Py_CLEAR(new_key);
        }
        if (new_key != NULL && new_key != key) {
            value = PyDict_GetItemWithError(x, key); /* Python code may have run */
            if (value == NULL && !PyErr_Occurred()) {
                Py_DECREF(new_key);
                Py_DECREF(key);
                return changed_size();
            }
        }
        if (new_key != NULL && value != NULL) {
            new_value = copy_object(run, value);
        }
        int failed = new_value == NULL || PyDict_SetItem(y, new_key, new_value) < 0;
        Py_XDECREF(new_key);
        Py_XDECREF(new_value);
        Py_DECREF(key);
        if (failed) {
            return -1;
        }
        if (PyDict_GET_SIZE(x) != size) {
            return changed_size();
        }
    }
    return 0;
}

static PyObject *
copy_dict(Run *run, PyObject *x)
{
    PyObject *y = PyDict_New();
    if (y == NULL || memo_set(run, x, y) < 0 || copy_items(run, x, y) < 0) {
        Py_XDECREF(y);
        return NULL;
    }
    return y;
}

static PyObject *
copy_tuple(Run *run, PyObject *x)
{
    Py_ssize_t size = PyTuple_GET_SIZE(x);
    PyObject *y = NULL;
    for (Py_ssize_t i = 0; i < size; i++) {
        PyObject *item = PyTuple_GET_ITEM(x, i);
        PyObject *copied = copy_object(run, item);
        if (copied == NULL) {
            Py_XDECREF(y);
            return NULL;
        }
        if (y == NULL && copied != item) {
            y = PyTuple_New(size);
            if (y == NULL) {
                Py_DECREF(copied);
                return NULL;
            }
            PyObject_GC_UnTrack(y); /* unfinished: nobody may find it */
            for (Py_ssize_t j = 0; j < i; j++) {
                PyObject *same = PyTuple_GET_ITEM(x, j);
                Py_INCREF(same);
                PyTuple_SET_ITEM(y, j, same);
            }
        }
        if (y == NULL) {
            Py_DECREF(copied);
        }
        else {
            PyTuple_SET_ITEM(y, i, copied);
        }
    }
    /* An item may have led back to the tuple, which is then finished already. */
    PyObject *known = memo_get(run, x);
    if (known != NULL || PyErr_Occurred()) {
        if (y != NULL && !PyErr_Occurred()) {
            PyObject_GC_Track(y);
        }
        Py_XDECREF(y);
        Py_XINCREF(known);
        return known;
    }
    if (y == NULL) {
        Py_INCREF(x);
        return x;
    }
    PyObject_GC_Track(y);
    return y;
}

/* A set goes by its reduce value in the standard library: type, a list of its items, its attributes. Exact sets have none. */
static PyObject *
copy_set(Run *run, PyObject *x, int frozen)
{
    PyObject *items = PySequence_List(x);
    if (items == NULL) {
        return NULL;
    }
    int same = 1;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(items); i++) {
        PyObject *item = PyList_GET_ITEM(items, i);
        PyObject *copied = copy_object(run, item);
        if (copied == NULL) {
            Py_DECREF(items);
            return NULL;
        }
        if (copied == item) {
            Py_DECREF(copied);
            continue;
        }
        same = 0;
        PyList_SetItem(items, i, copied);
    }
    if (!same && memo_expose(run) < 0) { /* the items' __hash__ and __eq__ may be Python code */
        Py_DECREF(items);
        return NULL;
    }
    PyObject *y = frozen ? PyFrozenSet_New(same ? x : items) : PySet_New(same ? x : items);
    if (frozen && y == x) { /* frozenset(frozenset) is the same object; the standard library makes a new one */
        Py_SETREF(y, PyFrozenSet_New(items));
    }
    Py_DECREF(items);
    return y;
}

/* ---- plain instances -------------------------------------------------------------------------------------------------------------- */

/* The dictionary of an instance, new reference; NULL without an exception where it has none yet. */
static PyObject *
instance_dict(PyObject *x)
{
    return PyObject_GenericGetDict(x, NULL);
}

/* Whether somebody besides the instance holds its dictionary, or it has a protocol method of its own. */
static int
is_unusual(PyObject *dict)
{
    if (Py_REFCNT(dict) > 2) {
        return 1;
    }
    return PyDict_GET_SIZE(dict) > 0 &&
           (PyDict_GetItemWithError(dict, name_deepcopy) != NULL || PyDict_GetItemWithError(dict, name_reduce_ex) != NULL);
}

static PyObject *copy_by_protocol(Run *run, PyObject *x);

static PyObject *
copy_plain(Run *run, PyObject *x, Plan *plan)
{
    PyTypeObject *type = Py_TYPE(x);
    Py_ssize_t slots = plan->slots;
    Py_ssize_t few[16], *offsets = few, *many = NULL;
    PyObject *dict = NULL, *y = NULL, *new_dict = NULL;
    int has_dict = plan->has_dict;
    if (has_dict) {
        dict = instance_dict(x);
        if (dict == NULL) {
            return NULL;
        }
        if (!PyDict_CheckExact(dict) || is_unusual(dict)) {
            Py_DECREF(dict);
            return PyErr_Occurred() ? NULL : copy_by_protocol(run, x);
        }
    }
    /* The plan may go away while parts are copied. */
    if (slots > (Py_ssize_t)(sizeof few / sizeof *few)) {
        offsets = many = PyMem_Malloc(slots * sizeof *many);
        if (many == NULL) {
            Py_XDECREF(dict);
            return PyErr_NoMemory();
        }
    }
    if (slots) {
        memcpy(offsets, plan->offsets, slots * sizeof *offsets);
    }
    y = PyBaseObject_Type.tp_new(type, empty_tuple, NULL);
    if (y == NULL || memo_set(run, x, y) < 0) {
        goto failed;
    }
    if (dict != NULL && PyDict_GET_SIZE(dict) > 0) {
        new_dict = PyDict_New();
        if (new_dict == NULL || copy_items(run, dict, new_dict) < 0) {
            goto failed;
        }
        /* Not PyObject_GenericSetDict: it leaves the values that 3.13 keeps inside the object valid. */
        if (PyObject_GenericSetAttr(y, name_dict, new_dict) < 0) {
            goto failed;
        }
    }
    for (Py_ssize_t i = 0; i < slots; i++) {
        PyObject *value = *(PyObject **)((char *)x + offsets[i]);
        if (value == NULL) {
            continue;
        }
        PyObject *copied = copy_object(run, value);
        if (copied == NULL) {
            goto failed;
        }
        Py_XSETREF(*(PyObject **)((char *)y + offsets[i]), copied);
    }
    Py_XDECREF(dict);
    Py_XDECREF(new_dict);
    PyMem_Free(many);
    return y;
failed:
    Py_XDECREF(dict);
    Py_XDECREF(new_dict);
    Py_XDECREF(y);
    PyMem_Free(many);
    return NULL;
}

/* ---- by the standard library's protocols --------------------------------------------------------------------------------------------- */

static PyObject *
copy_args(Run *run, PyObject *args)
{
    if (!PyTuple_Check(args)) {
        PyObject *list = PySequence_Tuple(args); /* as `for arg in args` */
        if (list == NULL) {
            return NULL;
        }
        PyObject *copied = copy_args(run, list);
        Py_DECREF(list);
        return copied;
    }
    Py_ssize_t size = PyTuple_GET_SIZE(args);
    PyObject *copies = PyTuple_New(size);
    for (Py_ssize_t i = 0; copies != NULL && i < size; i++) {
        PyObject *copied = copy_object(run, PyTuple_GET_ITEM(args, i));
        if (copied == NULL) {
            Py_CLEAR(copies);
            break;
        }
        PyTuple_SET_ITEM(copies, i, copied);
    }
    return copies;
}

static int
set_state(Run *run, PyObject *y, PyObject *state, PyObject *setter)
{
    PyObject *copied = copy_object(run, state);
    if (copied == NULL) {
        return -1;
    }
    if (memo_expose(run) < 0) {
        Py_DECREF(copied);
        return -1;
    }
    PyObject *done = PyObject_CallFunctionObjArgs(state_function, y, copied, setter, NULL);
    Py_DECREF(copied);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

static int
append_items(Run *run, PyObject *y, PyObject *items)
{
    PyObject *iterator = PyObject_GetIter(items);
    if (iterator == NULL) {
        return -1;
    }
    int failed = 0;
    PyObject *item;
    while (!failed && (item = PyIter_Next(iterator)) != NULL) {
        PyObject *copied = copy_object(run, item);
        Py_DECREF(item);
        failed = copied == NULL || memo_expose(run) < 0;
        if (!failed) {
            PyObject *done = PyObject_CallMethodObjArgs(y, name_append, copied, NULL);
            failed = done == NULL;
            Py_XDECREF(done);
        }
        Py_XDECREF(copied);
    }
    Py_DECREF(iterator);
    return failed || PyErr_Occurred() ? -1 : 0;
}

static int
set_pairs(Run *run, PyObject *y, PyObject *pairs)
{
    PyObject *iterator = PyObject_GetIter(pairs);
    if (iterator == NULL) {
        return -1;
    }
    int failed = 0;
    PyObject *pair;
    while (!failed && (pair = PyIter_Next(iterator)) != NULL) {
        PyObject *fast = PySequence_Tuple(pair);
        Py_DECREF(pair);
        if (fast == NULL) {
            failed = 1;
            break;
        }
        if (PyTuple_GET_SIZE(fast) != 2) {
            PyErr_Format(PyExc_ValueError,
                         PyTuple_GET_SIZE(fast) > 2 ? "too many values to unpack (expected 2)"
                                                    : "not enough values to unpack (expected 2, got %zd)",
                         PyTuple_GET_SIZE(fast));
            Py_DECREF(fast);
            failed = 1;
            break;
        }
        PyObject *key = copy_object(run, PyTuple_GET_ITEM(fast, 0));
        PyObject *value = key == NULL ? NULL : copy_object(run, PyTuple_GET_ITEM(fast, 1));
        failed = value == NULL || memo_expose(run) < 0 || PyObject_SetItem(y, key, value) < 0;
        Py_XDECREF(key);
        Py_XDECREF(value);
        Py_DECREF(fast);
    }
    Py_DECREF(iterator);
    return failed || PyErr_Occurred() ? -1 : 0;
}

/* The copy that a reduce value describes; x itself if it is a string. */
static PyObject *
reconstruct(Run *run, PyObject *x, PyObject *reduced)
{
    if (PyUnicode_Check(reduced)) {
        Py_INCREF(x);
        return x;
    }
    PyObject *parts = PySequence_Tuple(reduced);
    if (parts == NULL) {
        return NULL;
    }
    Py_ssize_t size = PyTuple_GET_SIZE(parts);
    if (size < 2 || size > 6) {
        PyErr_Format(PyExc_TypeError, "a reduce value of %zd items cannot be copied from: expected two to six", size);
        Py_DECREF(parts);
        return NULL;
    }
#define PART(i) (size > (i) && PyTuple_GET_ITEM(parts, (i)) != Py_None ? PyTuple_GET_ITEM(parts, (i)) : NULL)
    PyObject *y = NULL;
    PyObject *args = copy_args(run, PyTuple_GET_ITEM(parts, 1));
    if (args != NULL && memo_expose(run) == 0) {
        y = PyObject_Call(PyTuple_GET_ITEM(parts, 0), args, NULL);
    }
    Py_XDECREF(args);
    if (y == NULL || memo_set(run, x, y) < 0) {
        goto failed;
    }
    if (PART(2) != NULL && set_state(run, y, PART(2), size > 5 ? PyTuple_GET_ITEM(parts, 5) : Py_None) < 0) {
        goto failed;
    }
    if (PART(3) != NULL && append_items(run, y, PART(3)) < 0) {
        goto failed;
    }
    if (PART(4) != NULL && set_pairs(run, y, PART(4)) < 0) {
        goto failed;
    }
#undef PART
    Py_DECREF(parts);
    return y;
failed:
    Py_XDECREF(y);
    Py_DECREF(parts);
    return NULL;
}

static int
lookup_attribute(PyObject *x, PyObject *name, PyObject **found)
{
#if PY_VERSION_HEX >= 0x030d0000
    return PyObject_GetOptionalAttr(x, name, found);
#else
    *found = PyObject_GetAttr(x, name);
    if (*found != NULL) {
        return 1;
    }
    if (!PyErr_ExceptionMatches(PyExc_AttributeError)) {
        return -1;
    }
    PyErr_Clear();
    return 0;
#endif
}

static PyObject *
copy_by_protocol(Run *run, PyObject *x)
{
    PyTypeObject *type = Py_TYPE(x);
    if (PyType_IsSubtype(type, &PyType_Type)) {
        Py_INCREF(x);
        return x;
    }
    if (memo_expose(run) < 0) {
        return NULL;
    }
    PyObject *own;
    if (lookup_attribute(x, name_deepcopy, &own) < 0) {
        return NULL;
    }
    if (own != NULL && own != Py_None) {
        PyObject *y = PyObject_CallFunctionObjArgs(own, run->dict, NULL);
        Py_DECREF(own);
        return y;
    }
    Py_XDECREF(own);
    PyObject *reduced = PyObject_CallFunctionObjArgs(reduce_function, x, (PyObject *)type, NULL);
    if (reduced == NULL) {
        return NULL;
    }
    PyObject *y = reconstruct(run, x, reduced);
    Py_DECREF(reduced);
    return y;
}

static PyObject *
copy_ordered_dict(Run *run, PyObject *x)
{
    PyObject **attributes = _PyObject_GetDictPtr(x);
    if (attributes != NULL && *attributes != NULL && PyDict_GET_SIZE(*attributes) > 0) {
        return copy_by_protocol(run, x);
    }
    PyObject *y = PyODict_New();
    if (y == NULL || memo_set(run, x, y) < 0) {
        Py_XDECREF(y);
        return NULL;
    }
    PyObject *iterator = PyObject_GetIter(x);
    if (iterator == NULL) {
        Py_DECREF(y);
        return NULL;
    }
    PyObject *key;
    while ((key = PyIter_Next(iterator)) != NULL) {
        PyObject *value = PyDict_GetItemWithError(x, key);
        if (value == NULL) {
            if (!PyErr_Occurred()) {
                PyErr_SetObject(PyExc_KeyError, key);
            }
            Py_DECREF(key);
            break;
        }
        Py_INCREF(value);
        PyObject *new_key = copy_object(run, key), *new_value = NULL;
        if (new_key != NULL && (PyUnicode_CheckExact(new_key) || memo_expose(run) == 0)) {
            new_value = copy_object(run, value);
        }
        int failed = new_value == NULL || PyODict_SetItem(y, new_key, new_value) < 0;
        Py_XDECREF(new_key);
        Py_XDECREF(new_value);
        Py_DECREF(key);
        Py_DECREF(value);
        if (failed) {
            break;
        }
    }
    Py_DECREF(iterator);
    if (PyErr_Occurred()) {
        Py_DECREF(y);
        return NULL;
    }
    return y;
}

/* ---- rules ------------------------------------------------------------------------------------------------------------------------ */

/* What a rule's plan says: see copier._native_plan. */
typedef enum { RULE_SHARE = 0, RULE_FUNCTION, RULE_STEPS, RULE_REDUCE, RULE_REDUCE_WITH_PICKLER } RuleMode;

/* Run a copy function that yields each part that it wants copied. */
static PyObject *
drive_steps(Run *run, PyObject *steps)
{
    PyObject *sent = Py_None, *result = NULL;
    Py_INCREF(sent);
    for (;;) {
        PySendResult status = PyIter_Send(steps, sent, &result);
        Py_CLEAR(sent);
        if (status == PYGEN_RETURN) {
            return result;
        }
        if (status == PYGEN_ERROR) {
            return NULL;
        }
        sent = copy_object(run, result);
        Py_DECREF(result);
        if (sent == NULL) {
            return NULL;
        }
    }
}

static PyObject *
copy_by_rule(Run *run, PyObject *x, PyObject *plan)
{
    long mode = PyLong_AsLong(PyTuple_GET_ITEM(plan, 0));
    PyObject *function = PyTuple_GET_ITEM(plan, 1);
    if (mode == RULE_SHARE) {
        Py_INCREF(x);
        return x;
    }
    if (memo_expose(run) < 0) {
        return NULL;
    }
    if (mode == RULE_FUNCTION) {
        return PyObject_CallFunctionObjArgs(function, x, run->dict, NULL);
    }
    if (mode == RULE_STEPS) {
        PyObject *steps = PyObject_CallFunctionObjArgs(function, x, run->dict, NULL);
        if (steps == NULL) {
            return NULL;
        }
        PyObject *y = drive_steps(run, steps);
        Py_DECREF(steps);
        return y;
    }
    PyObject *reduced = mode == RULE_REDUCE ? PyObject_CallFunctionObjArgs(function, x, NULL)
                                            : PyObject_CallFunctionObjArgs(function, x, Py_None, NULL);
    if (reduced == NULL || reduced == Py_NotImplemented) {
        return reduced;
    }
    PyObject *checked = PyObject_CallFunctionObjArgs(check_function, PyTuple_GET_ITEM(plan, 2), x, reduced, NULL);
    Py_XDECREF(checked);
    PyObject *y = checked == NULL ? NULL : reconstruct(run, x, reduced);
    Py_DECREF(reduced);
    return y;
}

static PyObject *copy_kind(Run *run, PyObject *x, Kind kind, Plan *plan);

static PyObject *
copy_by_rules(Run *run, PyObject *x, Plan *plan)
{
    PyObject *rules = plan->rules;
    Kind fallback = plan->fallback;
    Py_INCREF(rules); /* the plan may go away while rules run */
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(rules); i++) {
        PyObject *y = copy_by_rule(run, x, PyTuple_GET_ITEM(rules, i));
        if (y == Py_NotImplemented && x != Py_NotImplemented) {
            Py_DECREF(y);
            continue;
        }
        Py_DECREF(rules);
        return y;
    }
    Py_DECREF(rules);
    return copy_kind(run, x, fallback, NULL);
}

static PyObject *
copy_kind(Run *run, PyObject *x, Kind kind, Plan *plan)
{
    switch (kind) {
    case KIND_ATOMIC:
        Py_INCREF(x);
        return x;
    case KIND_LIST:
        return copy_list(run, x);
    case KIND_DICT:
        return copy_dict(run, x);
    case KIND_TUPLE:
        return copy_tuple(run, x);
    case KIND_SET:
        return copy_set(run, x, 0);
    case KIND_FROZENSET:
        return copy_set(run, x, 1);
    case KIND_BYTEARRAY:
        return PyByteArray_FromObject(x);
    case KIND_ORDERED_DICT:
        return copy_ordered_dict(run, x);
    case KIND_PLAIN: {
        int registered = plan == NULL ? 1 : PyDict_Contains(dispatch_table, (PyObject *)Py_TYPE(x));
        if (registered < 0) {
            return NULL;
        }
        return registered ? copy_by_protocol(run, x) : copy_plain(run, x, plan);
    }
    case KIND_RULES:
        return copy_by_rules(run, x, plan);
    default:
        return copy_by_protocol(run, x);
    }
}

/* The heart: as copier._copy. Returns a new reference. */
static PyObject *
copy_object(Run *run, PyObject *x)
{
    PyTypeObject *type = Py_TYPE(x);
    Plan *plan = plan_for(run, type);
    if (plan == NULL) {
        return NULL;
    }
    Kind kind = plan->kind;
    if (kind == KIND_ATOMIC) {
        Py_INCREF(x);
        return x;
    }
    if (run->exposed || Py_REFCNT(x) > 1) {
        PyObject *known = memo_get(run, x);
        if (known != NULL) {
            Py_INCREF(known);
            return known;
        }
        if (PyErr_Occurred()) {
            return NULL;
        }
    }
    if (stack_is_low(run)) {
        return NULL;
    }
    /* Containers in progress are in the memo, which keeps them once it is exposed; the others are kept from here. */
    int owned = kind >= KIND_RULES || kind == KIND_TUPLE || run->exposed;
    if (owned) {
        Py_INCREF(x); /* Python code may drop the last reference while x is copied */
    }
    PyObject *y = copy_kind(run, x, kind, plan);
    stack_leave();
    if (y != NULL && memo_finish(run, x, y, kind != KIND_TUPLE && kind != KIND_SET && kind != KIND_FROZENSET && kind != KIND_BYTEARRAY) < 0) {
        Py_CLEAR(y);
    }
    if (owned) {
        Py_DECREF(x);
    }
    return y;
}

/* ---- calls from Python -------------------------------------------------------------------------------------------------------------- */

#ifdef HAVE_STACK_LIMIT
/* The lowest address that a copy may use in this thread; asked once a thread, for the main thread's answer is slow to find. */
static char *
stack_limit(void)
{
    static __thread char *limit;
    if (limit == NULL) {
        pthread_attr_t attributes;
        void *low = NULL;
        size_t size = 0;
        if (pthread_getattr_np(pthread_self(), &attributes) == 0) {
            pthread_attr_getstack(&attributes, &low, &size);
            pthread_attr_destroy(&attributes);
        }
        if (size == 0 || size > ((size_t)64 << 20)) { /* unknown or unlimited: count on what every system gives */
            limit = (char *)__builtin_frame_address(0) - ((size_t)4 << 20);
        }
        else {
            /* Python code that a copy calls needs room too. */
            size_t margin = size / 4 < ((size_t)256 << 10) ? size / 4 : ((size_t)256 << 10);
            limit = (char *)low + margin;
        }
    }
    return limit;
}
#endif

static void
run_clear(Run *run)
{
    for (size_t i = 0; i < run->logged; i++) {
        Py_DECREF(run->log[i].copy);
    }
    PyMem_Free(run->log);
    for (size_t i = 0; run->table != NULL && i <= run->mask; i++) {
        if (run->table[i].source != NULL) {
            Py_DECREF(run->table[i].source);
            Py_DECREF(run->table[i].copy);
        }
    }
    PyMem_Free(run->table);
    plans_clear(&run->own_plans);
    Py_XDECREF(run->keep);
    Py_XDECREF(run->dict);
    Py_DECREF(run->registry);
    Py_XDECREF(run->options);
    Py_DECREF(run->root);
}

static void
run_leave(Run *run)
{
    Run **link = &runs;
    while (*link != run) {
        link = &(*link)->outer;
    }
    *link = run->outer;
    if (run->announced) {
        PyObject *type, *value, *traceback;
        PyErr_Fetch(&type, &value, &traceback);
        PyObject *done = PyObject_CallFunctionObjArgs(forget_function, run->dict, NULL);
        if (done == NULL) {
            PyErr_WriteUnraisable(forget_function);
        }
        Py_XDECREF(done);
        PyErr_Restore(type, value, traceback);
    }
}

PyDoc_STRVAR(copy_doc,
"copy(x, registry, memo, options)\n--\n\n"
"A deep copy of x, as copier.deepcopy makes it. memo is None or a dictionary of the caller's; options is None or a dictionary.");

static PyObject *
core_copy(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    if (count != 4) {
        PyErr_SetString(PyExc_TypeError, "copy takes four arguments");
        return NULL;
    }
    Run run;
    memset(&run, 0, sizeof run);
    run.root = Py_NewRef(args[0]); /* two refer to it now, so the root is always in the table */
    run.registry = Py_NewRef(args[1] == Py_None ? default_registry : args[1]);
    run.options = args[3] == Py_None ? NULL : Py_NewRef(args[3]);
    run.plans = run.registry == default_registry ? &default_plans : &run.own_plans;
#ifdef HAVE_STACK_LIMIT
    run.stack_limit = stack_limit();
#endif
    run.outer = runs;
    runs = &run;
    int collects = PyGC_Disable();
    PyObject *y = NULL;
    if (args[2] != Py_None) {
        run.dict = Py_NewRef(args[2]);
    }
    if (run.dict == NULL || memo_expose(&run) == 0) {
        y = copy_object(&run, run.root);
    }
    run_leave(&run);
    if (collects) {
        PyGC_Enable();
    }
    run_clear(&run);
    return y;
}

PyDoc_STRVAR(nested_doc,
"nested(x, memo)\n--\n\n"
"Copy a part in the run that the memo belongs to; NotImplemented if there is none.");

static PyObject *
core_nested(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    if (count != 2) {
        PyErr_SetString(PyExc_TypeError, "nested takes two arguments");
        return NULL;
    }
    for (Run *run = runs; run != NULL; run = run->outer) {
        if (run->dict == args[1]) {
            return copy_object(run, args[0]);
        }
    }
    Py_RETURN_NOTIMPLEMENTED;
}

PyDoc_STRVAR(invalidate_doc, "invalidate()\n--\n\nForget how types are copied: a rule has changed.");

static PyObject *
core_invalidate(PyObject *module, PyObject *unused)
{
    rules_generation++;
    Py_RETURN_NONE;
}

PyDoc_STRVAR(setup_doc,
"setup(copier, errors, registry)\n--\n\n"
"Tell the core where the functions are that it calls. Returns the numbers of the kinds of plans.");

static int
take(PyObject *module, const char *name, PyObject **slot)
{
    PyObject *found = PyObject_GetAttrString(module, name);
    if (found == NULL) {
        return -1;
    }
    Py_XSETREF(*slot, found);
    return 0;
}

static PyObject *
core_setup(PyObject *module, PyObject *args)
{
    PyObject *copier, *errors, *registry;
    if (!PyArg_ParseTuple(args, "OOO", &copier, &errors, &registry)) {
        return NULL;
    }
    if (take(copier, "_native_plan", &plan_function) < 0 || take(copier, "_expose", &expose_function) < 0 ||
        take(copier, "_forget", &forget_function) < 0 || take(copier, "set_state", &state_function) < 0 ||
        take(copier, "reduce_by_protocol", &reduce_function) < 0 || take(errors, "check_reduced", &check_function) < 0 ||
        take(registry, "default_registry", &default_registry) < 0) {
        return NULL;
    }
    PyObject *copyreg = PyImport_ImportModule("copyreg");
    if (copyreg == NULL || take(copyreg, "dispatch_table", &dispatch_table) < 0) {
        Py_XDECREF(copyreg);
        return NULL;
    }
    Py_DECREF(copyreg);
    rules_generation++;
    return Py_BuildValue("{s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i}", "atomic", KIND_ATOMIC, "list", KIND_LIST, "dict", KIND_DICT,
                         "tuple", KIND_TUPLE, "set", KIND_SET, "frozenset", KIND_FROZENSET, "bytearray", KIND_BYTEARRAY, "plain",
                         KIND_PLAIN, "ordered_dict", KIND_ORDERED_DICT, "rules", KIND_RULES, "protocol", KIND_PROTOCOL);
}

/* ---- the module ------------------------------------------------------------------------------------------------------------------- */

static PyMethodDef methods[] = {
    {"copy", (PyCFunction)(void (*)(void))core_copy, METH_FASTCALL, copy_doc},
    {"nested", (PyCFunction)(void (*)(void))core_nested, METH_FASTCALL, nested_doc},
    {"invalidate", core_invalidate, METH_NOARGS, invalidate_doc},
    {"setup", core_setup, METH_VARARGS, setup_doc},
    {NULL, NULL, 0, NULL},
};

static int
module_exec(PyObject *module)
{
    empty_tuple = PyTuple_New(0);
    name_deepcopy = PyUnicode_InternFromString("__deepcopy__");
    name_reduce_ex = PyUnicode_InternFromString("__reduce_ex__");
    name_append = PyUnicode_InternFromString("append");
    name_dict = PyUnicode_InternFromString("__dict__");
    return empty_tuple && name_deepcopy && name_reduce_ex && name_append && name_dict ? 0 : -1;
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
    .m_name = "safepickle._native._core",
    .m_doc = "The copier of safepickle/copier.py in C.",
    .m_size = 0,
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC
PyInit__core(void)
{
    return PyModuleDef_Init(&definition);
}
