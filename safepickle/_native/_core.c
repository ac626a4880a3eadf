/* The copier of safepickle/copier.py in C. That module is the definition; this one is its twin and agrees with it, exceptions
 * included: one test suite runs on both.
 *
 * What makes it fast: exact builtin containers and plain instances are copied without a reduce value; the memo is a table of pointers that
 * becomes a real dictionary only when Python code gets to see it; objects that only one container refers to are not even looked up; the
 * garbage collector, which would find nothing, pauses while objects are made.
 *
 * What makes it safe is one discipline. Python code runs only
 *   - after `memo_expose`, if it may see the memo: hooks, reducers, rules. The memo is a dictionary from then on, and every function here
 *     owns what it works on;
 *   - or between `python_begins` and `python_ends`, if it may not: how a type is copied, the __hash__ of a key. Then the table owns all that
 *     was met so far, and the garbage collector runs as usual.
 * Whatever runs, it may change what is being copied: nothing borrowed outlives such a call. The depth is limited by the stack that is
 * left, not by a count.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <frameobject.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "interface.h"

#ifdef Py_GIL_DISABLED
#error "the native copier needs the GIL: build without it, the Python copier serves free-threaded interpreters"
#endif

#if defined(__linux__) && defined(__GLIBC__)
#include <pthread.h>
#define HAVE_STACK_LIMIT 1
#endif

/* What has many variables is not to take stack where it only might be called: objects are nested deep. */
#ifdef _MSC_VER
#define THREAD_LOCAL __declspec(thread)
#define APART __declspec(noinline)
#else
#define THREAD_LOCAL __thread
#define APART __attribute__((noinline))
#endif

/* ---- differences between versions of Python ------------------------------------------------------------------------------ */

#include "shared.h"
#include "layouts.h"

/* x.name; 0 and NULL where it has none. */
static int
lookup_attribute(PyObject *x, PyObject *name, PyObject **found)
{
#if PY_VERSION_HEX >= 0x030d0000
    return PyObject_GetOptionalAttr(x, name, found);
#else
    return _PyObject_LookupAttr(x, name, found);
#endif
}

/* ---- what the module knows -------------------------------------------------------------------------------------------------- */

typedef enum {
    KIND_UNKNOWN = 0,
    KIND_ATOMIC, /* its own copy, whatever the memo says */
    KIND_SHARED, /* its own copy, unless the memo has another */
    KIND_ENUM,   /* the same, if the member has no __deepcopy__ of its own */
    KIND_LIST,
    KIND_DICT,
    KIND_TUPLE,
    KIND_SET,
    KIND_FROZENSET,
    KIND_BYTEARRAY,
    KIND_PLAIN,
    KIND_STATEFUL, /* plain, but for methods that say what its state is */
    KIND_ORDERED_DICT,
    KIND_DEFAULT_DICT,
    KIND_RULES,
    KIND_TENSOR, /* the same, but for plain tensors, which are copied without a call */
    KIND_PROTOCOL,
} Kind;

/* How objects of one type are copied. */
typedef struct {
    PyTypeObject *type; /* borrowed: the version tells whether it is still that type */
    unsigned int version;
    int has_dict;
    Kind kind;
    PyObject *rules;      /* KIND_RULES: a tuple of (mode, rule) */
    PyObject *state;      /* KIND_STATEFUL: what the class says, see plans._state_of_plain */
    Kind fallback;        /* KIND_RULES: what serves when every rule declines */
    Kind otherwise;       /* KIND_RULES: what serves where no rule has anything to say about an object, or KIND_UNKNOWN */
    PyObject *concerns;   /* KIND_RULES: the attributes that tell; a tuple, or NULL */
    Py_ssize_t *offsets;  /* KIND_PLAIN: where the slots are */
    Py_ssize_t slots;
    Py_ssize_t ordinary;  /* how many names of the keys that instances share are known to be ordinary */
} Plan;

#define ATOMS 32
#define ATOM(type) (((uintptr_t)(type) >> 5) % ATOMS)

typedef struct {
    Plan *plans;
    size_t mask;
    size_t used;
    uint64_t generation; /* the registry's, at the time when the table was filled */
    PyTypeObject *atoms[ATOMS]; /* static types known to be atomic: they never change */
    PyTypeObject *others[ATOMS]; /* and such that are known not to be */
} PlanTable;

static PlanTable default_plans;
static uint64_t rules_generation = 1;

static PyObject *plan_function;      /* copier._native_plan(cls, registry) -> tuple */
static PyObject *expose_function;    /* copier._expose(registry, memo, root, options) -> call: Python code finds it by its memo */
static PyObject *forget_function;    /* copier._forget(call) */
static PyObject *default_registry;
static PyObject *apply_function;     /* copier._applied(rule, x, memo): what the rule's copy function says */
static PyObject *reduced_function;   /* copier._reduced(rule, x): what the rule's reducer says */
static PyObject *blame_function;     /* copier._blame(rule, x, error, memo): raises the error with the rule's name, or returns */
static PyObject *six_function;       /* copier._six(reduced): six parts */
static PyObject *refreshed_function; /* copier._refreshed(registry): whether no rule waits for a module that is here */
static PyObject *call_function;      /* copier._called(func, args) */
static PyObject *pair_function;      /* copier._pair(item) -> (key, value) */
static PyObject *state_function;     /* copier.set_state(y, state, setter) */
static PyObject *reduce_function;    /* copier.reduce_by_protocol(x, cls) */
static PyObject *failed_function;    /* copier._native_failed(x, error): what becomes of a deepcopy(x) that has failed */
static PyObject *running;            /* copier._running */
static PyObject *python_deepcopy, *python_deepcopy_doc;
static PyObject *default_registry_vars;
static PyObject *copier_globals;
static PyCodeObject *trace_code;     /* the code of a frame that stands for copier._copy in a traceback */
static PyObject *dispatch_table;     /* copyreg.dispatch_table */
static PyObject *entry_type;         /* entries.Entry */
static PyObject *foreign_function;   /* entries.foreign(reducer) */
static PyObject *empty_tuple;
static PyObject *name_deepcopy, *name_append, *name_dict, *name_failed, *name_throw, *name_value, *name_reduce_ex,
    *name_default_factory, *name_getstate, *name_setstate, *name_settings, *name_core, *name_plans, *name_popitem,
    *name_copy, *number_four;
static PyObject *name_torch, *name_class, *name_unguarded, *name_by_value, *name_torch_quick;

/* ---- what is registered with copyreg ------------------------------------------------------------------------------------------- */

/* A plan says what copyreg says about its type, so plans are made anew when that changes. */
#if PY_VERSION_HEX >= 0x030c0000
static int
registered_changed(PyDict_WatchEvent event, PyObject *dict, PyObject *key, PyObject *value)
{
    rules_generation++;
    return 0;
}

static int
registered_watch(void)
{
    int watcher = PyDict_AddWatcher(registered_changed);
    return watcher < 0 ? -1 : PyDict_Watch(watcher, dispatch_table);
}

static inline uint64_t
generation_now(void)
{
    return rules_generation;
}
#else
static uint64_t registered_version;

static int
registered_watch(void)
{
    registered_version = ((PyDictObject *)dispatch_table)->ma_version_tag;
    return 0;
}

static inline uint64_t
generation_now(void)
{
    uint64_t version = ((PyDictObject *)dispatch_table)->ma_version_tag;
    if (version != registered_version) {
        registered_version = version;
        rules_generation++;
    }
    return rules_generation;
}
#endif

/* ---- the memo ------------------------------------------------------------------------------------------------------------------ */

typedef struct {
    PyObject *source; /* owned in the table, borrowed in the log */
    PyObject *copy;   /* owned */
} Pair;

#define FEW 16 /* a small copy allocates nothing for its memo */
#define FEW_LOGGED 48
#define MANY_LOGGED 1024

/* A piece of the log: as many pairs in as little memory as addresses of 48 bits allow. */
typedef struct Logged {
    struct Logged *before;
    uint32_t low[2 * MANY_LOGGED];
    uint16_t high[2 * MANY_LOGGED];
} Logged;

/* A dictionary that is being copied. Its items are entered all at once, at the end or before Python code runs: that finds those which
 * were copied. */
typedef struct Pending {
    struct Pending *outer;
    PyObject *x, *y;
    PyObject **values; /* owned; NULL for one that is its own copy. NULL: y is a clone, its first items are right, the others not yet */
    Py_ssize_t count;
    int entered;
} Pending;

typedef struct Run {
    struct Run *outer;    /* runs that are in progress, all threads, under the GIL */
    PyObject *registry;
    PyObject *options;    /* NULL or a dict */
    PyObject *root;
    PyObject *dict;       /* the memo once Python code has seen it; then nothing is added to the table */
    PyObject *keep_key;   /* id(dict): dict[keep_key] is the list of what the memo keeps alive */
    PyObject *call;       /* what expose_function returned: Python code finds the run by its memo */
    Pair *table;
    size_t mask;
    size_t used;
    size_t logged;        /* objects that only one container refers to: the first ones in few_logged, then in pieces */
    Logged *log;          /* the last piece, in use or empty */
    PlanTable *plans;
    PyObject *own_plans;  /* what `plans` is part of where the registry is not the default one */
    Plan passing;         /* a plan that is not kept */
    Pending *pending;
    PyObject *seen, *seen_copy; /* what the table was asked for last; borrowed from it */
    PyObject *stored;     /* what memo["torch"] is made of once Python code sees the memo */
    PyObject *gathered;   /* tensors whose copies have no contents yet: (settle, sources, copies) */
    PyObject *graphs;     /* torch's function that switches graphs on again, if they were on before tensors were copied */
    int tensors;          /* since Python code ran last, tensors were copied: no mode of torch is active, no graphs are made */
    unsigned long pythons; /* how often Python code has begun to run: nothing learnt before is sure afterwards */
    int users;            /* calls that are at work on it, in several threads perhaps */
    int exposed;
    int collects;         /* the garbage collector was on before this run turned it off */
    Pair few_logged[FEW_LOGGED];
    Pair few[FEW];
} Run;

static Run *runs;

static APART int
table_grow(Run *run)
{
    size_t size = (run->mask + 1) * (run->mask < 4096 ? 4 : 2);
    Pair *bigger = PyMem_Calloc(size, sizeof(Pair));
    if (bigger == NULL) {
        PyErr_NoMemory();
        return -1;
    }
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
    if (run->table != run->few) {
        PyMem_Free(run->table);
    }
    else {
        memset(run->few, 0, sizeof run->few);
    }
    run->table = bigger;
    run->mask = size - 1;
    return 0;
}

static int
table_add(Run *run, PyObject *source, PyObject *copy)
{
    if (run->used * 3 >= run->mask * 2) {
        if (table_grow(run) < 0) {
            return -1;
        }
    }
    size_t at = pointer_hash(source) & run->mask;
    while (run->table[at].source != NULL) {
        if (run->table[at].source == source) {
            Py_INCREF(copy);
            run->seen = NULL;
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

static inline void
logged_put(Logged *piece, size_t at, const void *address)
{
    piece->low[at] = (uint32_t)(uintptr_t)address;
    piece->high[at] = (uint16_t)((uint64_t)(uintptr_t)address >> 32);
}

static inline PyObject *
logged_get(const Logged *piece, size_t at)
{
    return (PyObject *)(uintptr_t)((uint64_t)piece->high[at] << 32 | piece->low[at]);
}

static int
log_add(Run *run, PyObject *source, PyObject *copy)
{
    if (run->logged < FEW_LOGGED) {
        run->few_logged[run->logged].source = source;
        run->few_logged[run->logged].copy = Py_NewRef(copy);
        run->logged++;
        return 0;
    }
    if (((uint64_t)(uintptr_t)source | (uint64_t)(uintptr_t)copy) >> 48) {
        return table_add(run, source, copy);
    }
    size_t at = (run->logged - FEW_LOGGED) % MANY_LOGGED;
    if (at == 0) {
        Logged *piece = PyMem_Malloc(sizeof(Logged));
        if (piece == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        piece->before = run->log;
        run->log = piece;
    }
    logged_put(run->log, 2 * at, source);
    logged_put(run->log, 2 * at + 1, Py_NewRef(copy));
    run->logged++;
    return 0;
}

/* Take the last pair out of the log; its copy is owned. */
static Pair
log_pop(Run *run)
{
    run->logged--;
    if (run->logged < FEW_LOGGED) {
        return run->few_logged[run->logged];
    }
    size_t at = (run->logged - FEW_LOGGED) % MANY_LOGGED;
    Pair last = {logged_get(run->log, 2 * at), logged_get(run->log, 2 * at + 1)};
    if (at == 0) {
        Logged *piece = run->log;
        run->log = piece->before;
        PyMem_Free(piece);
    }
    return last;
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

/* Keep the source alive as long as the memo, as copier.keep_alive. */
static int
dict_keep(Run *run, PyObject *source)
{
    PyObject *found = PyDict_GetItemWithError(run->dict, run->keep_key);
    if (found == NULL) {
        if (PyErr_Occurred()) {
            return -1;
        }
        found = PyList_New(1);
        if (found == NULL) {
            return -1;
        }
        PyList_SET_ITEM(found, 0, Py_NewRef(source));
        int failed = PyDict_SetItem(run->dict, run->keep_key, found);
        Py_DECREF(found);
        return failed;
    }
    Py_INCREF(found);
    int failed;
    if (PyList_CheckExact(found)) {
        failed = PyList_Append(found, source);
    }
    else {
        PyObject *done = PyObject_CallMethodObjArgs(found, name_append, source, NULL);
        failed = done == NULL ? -1 : 0;
        Py_XDECREF(done);
    }
    Py_DECREF(found);
    return failed;
}

/* Move the log into the table, which owns the sources: Python code is about to run, and may drop them or refer to them once more. */
static int
log_flush(Run *run)
{
    int failed = 0;
    while (run->logged) { /* to the end, whatever happens: what stays in the log may soon be gone */
        Pair pair = log_pop(run);
        failed = failed || table_add(run, pair.source, pair.copy) < 0;
        Py_DECREF(pair.copy);
    }
    return failed ? -1 : 0;
}

static inline void
gc_pause(Run *run)
{
    if (PyGC_Disable()) {
        run->collects = 1;
    }
}

static inline void
gc_resume(Run *run)
{
    if (run->collects) {
        run->collects = 0;
        PyGC_Enable();
    }
}

static int pending_enter(Run *run);
static int stored_expose(Run *run);
static int tensors_end(Run *run);

/* Before Python code that does not get to see the memo. */
static inline int
python_begins(Run *run)
{
    run->pythons++;
    if ((run->logged && log_flush(run) < 0) || (run->pending != NULL && pending_enter(run) < 0)) {
        return -1;
    }
    gc_resume(run);
    return run->tensors ? tensors_end(run) : 0;
}

static inline void
python_ends(Run *run)
{
    gc_pause(run);
}

/* Before Python code that may see the memo: make it a real dictionary, which is the only memo from then on. The table still owns what it
 * has, for the functions that are at work. */
static int
memo_expose(Run *run)
{
    if (run->exposed) {
        return 0;
    }
    if (python_begins(run) < 0) {
        return -1;
    }
    if (run->dict == NULL) {
        run->dict = PyDict_New();
        if (run->dict == NULL) {
            return -1;
        }
    }
    run->keep_key = PyLong_FromVoidPtr(run->dict);
    if (run->keep_key == NULL) {
        return -1;
    }
    for (size_t i = 0; i <= run->mask; i++) {
        Pair pair = run->table[i];
        if (pair.source != NULL && (dict_add(run, pair.source, pair.copy) < 0 || dict_keep(run, pair.source) < 0)) {
            return -1;
        }
    }
    if (stored_expose(run) < 0) {
        return -1;
    }
    run->exposed = 1;
    PyObject *options = run->options ? run->options : Py_None;
    run->call = PyObject_CallFunctionObjArgs(expose_function, run->registry, run->dict, run->root, options, NULL);
    return run->call == NULL ? -1 : 0;
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
    if (source == run->seen) {
        return run->seen_copy;
    }
    size_t at = pointer_hash(source) & run->mask;
    while (run->table[at].source != NULL) {
        if (run->table[at].source == source) {
            run->seen = source;
            return run->seen_copy = run->table[at].copy;
        }
        at = (at + 1) & run->mask;
    }
    return NULL;
}

/* Enter a copy that is still being filled: cycles lead to it. `alone`: one container refers to the source, and nothing else. */
static int
memo_set(Run *run, PyObject *source, PyObject *copy, int alone)
{
    if (run->exposed) {
        return dict_add(run, source, copy);
    }
    /* Nobody asks for it again unless Python code does. */
    return alone ? log_add(run, source, copy) : table_add(run, source, copy);
}

/* What `_copy` does at its end: enter the copy for good, and keep the original alive. */
static int
memo_finish(Run *run, PyObject *source, PyObject *copy, int entered, int alone, int undisturbed)
{
    if (!run->exposed) {
        return entered ? 0 : memo_set(run, source, copy, alone);
    }
    if (!(entered && undisturbed) && dict_add(run, source, copy) < 0) {
        return -1;
    }
    return dict_keep(run, source);
}

/* ---- plans: how objects of a type are copied ------------------------------------------------------------------------------------- */

static void
plan_clear(Plan *plan)
{
    Py_CLEAR(plan->rules);
    Py_CLEAR(plan->state);
    Py_CLEAR(plan->concerns);
    PyMem_Free(plan->offsets);
    memset(plan, 0, sizeof(Plan));
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
plan_make(Plan *plan, PyTypeObject *type, PyObject *registry, int *kept)
{
    PyObject *answer = PyObject_CallFunctionObjArgs(plan_function, (PyObject *)type, registry, NULL);
    if (answer == NULL) {
        return -1;
    }
    int kind, fallback, otherwise, has_dict;
    PyObject *rules, *concerns, *members, *state;
    if (!PyArg_ParseTuple(answer, "iiiipO!O!O!O", &kind, &fallback, &otherwise, &has_dict, kept, &PyTuple_Type, &rules, &PyTuple_Type,
                          &concerns, &PyTuple_Type, &members, &state)) {
        Py_DECREF(answer);
        return -1;
    }
    plan_clear(plan);
    plan->type = type;
    plan->kind = (Kind)kind;
    plan->fallback = (Kind)fallback;
    plan->otherwise = (Kind)otherwise;
    plan->has_dict = has_dict;
    if (PyTuple_GET_SIZE(rules) > 0) {
        Py_INCREF(rules);
        plan->rules = rules;
    }
    if (PyTuple_GET_SIZE(concerns) > 0) {
        plan->concerns = Py_NewRef(concerns);
    }
    if (PyTuple_CheckExact(state)) {
        plan->state = Py_NewRef(state);
    }
    int failed = plan_read_slots(plan, members);
    Py_DECREF(answer);
    return failed;
}

#include "plan_table.h"

/* Ask for the plan of a type that is not known, or not any more. Runs Python code. */
static APART Plan *
plan_ask(Run *run, PyTypeObject *type)
{
    Plan fresh;
    memset(&fresh, 0, sizeof fresh);
    int kept = 0, current = 0;
    if (python_begins(run) < 0) {
        return NULL;
    }
    Py_INCREF(type);
    /* Asking may load a library's rules or change the type, and so may another thread meanwhile: ask until nothing changes. */
    for (int attempt = 0; attempt < 4 && !current; attempt++) {
        unsigned int version = type_new_version(type, name_deepcopy);
        uint64_t generation = generation_now();
        if (plan_make(&fresh, type, run->registry, &kept) < 0) {
            plan_clear(&fresh);
            Py_DECREF(type);
            python_ends(run);
            return NULL;
        }
        fresh.version = version;
        current = generation == generation_now() && version == type_version(type);
    }
    Plan *plan = NULL;
    if (current && kept && fresh.version != 0) {
        plan = plan_keep(run->plans, &fresh) < 0 ? NULL : plan_find(run->plans, type);
    }
    if (plan == NULL && !PyErr_Occurred()) {
        Plan old = run->passing;
        run->passing = fresh;
        memset(&fresh, 0, sizeof fresh);
        plan_clear(&old);
        plan = &run->passing;
    }
    plan_clear(&fresh);
    Py_DECREF(type); /* the object that is copied keeps it */
    python_ends(run);
    return plan;
}

/* ---- errors ------------------------------------------------------------------------------------------------------------------- */

/* Add a frame to the traceback of the exception that is set, with the variables that the copier in Python has at that point: by them
 * paths.chain_of_copy finds the way to the part that failed. */
static APART void
trace(PyObject *x, PyObject *reduced, PyObject *y, const char *what, PyObject *item)
{
    if (!PyErr_ExceptionMatches(PyExc_Exception) || PyErr_ExceptionMatches(PyExc_RecursionError) ||
        PyErr_ExceptionMatches(PyExc_MemoryError)) {
        return;
    }
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyFrameObject *frame = NULL;
    PyObject *variables = PyDict_New();
    if (variables != NULL && PyDict_SetItemString(variables, "x", x) == 0 &&
        (reduced == NULL || PyDict_SetItemString(variables, "reduced", reduced) == 0) &&
        (y == NULL || PyDict_SetItemString(variables, "y", y) == 0) &&
        (item == NULL || PyDict_SetItemString(variables, what, item) == 0)) {
        frame = PyFrame_New(PyThreadState_Get(), trace_code, copier_globals, variables);
    }
    Py_XDECREF(variables);
    PyErr_Restore(type, value, traceback); /* replaces what went wrong here */
    if (frame != NULL) {
        PyTraceBack_Here(frame);
        Py_DECREF(frame);
    }
}

/* ---- copying ---------------------------------------------------------------------------------------------------------------- */

static PyObject *copy_held(Run *run, PyObject *x, Py_ssize_t holders);

/* The heart: as copier._copy. Returns a new reference. */
static inline PyObject *
copy_object(Run *run, PyObject *x)
{
    return copy_held(run, x, 1);
}

#ifdef HAVE_STACK_LIMIT
static THREAD_LOCAL char *stack_lowest; /* the lowest address that a copy may use in this thread */

static void
stack_ask(void)
{
    pthread_attr_t attributes;
    void *low = NULL;
    size_t size = 0;
    if (pthread_getattr_np(pthread_self(), &attributes) == 0) {
        pthread_attr_getstack(&attributes, &low, &size);
        pthread_attr_destroy(&attributes);
    }
    if (size == 0 || size > ((size_t)64 << 20)) { /* unknown or unlimited: count on what every system gives */
        stack_lowest = (char *)__builtin_frame_address(0) - ((size_t)4 << 20);
        return;
    }
    /* Python code that a copy calls needs room too. */
    size_t margin = size / 3 < ((size_t)256 << 10) ? size / 3 : ((size_t)256 << 10);
    stack_lowest = (char *)low + margin;
}
#endif

static inline int
stack_is_low(void)
{
#ifdef HAVE_STACK_LIMIT
    if ((char *)__builtin_frame_address(0) < stack_lowest) {
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

static int
is_atomic_type(PlanTable *table, PyTypeObject *type, PyTypeObject **last)
{
    PyTypeObject **atom = &table->atoms[ATOM(type)];
    if (*atom == type && table->generation == rules_generation) {
        *last = type;
        return 1;
    }
    Plan *plan = plan_find(table, type);
    if (plan == NULL) {
        return 0;
    }
    int atomic = plan->kind == KIND_ATOMIC;
    if (!PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE)) {
        *(atomic ? atom : &table->others[ATOM(type)]) = type;
    }
    if (atomic) {
        *last = type;
    }
    return atomic;
}

/* Whether an object is its own copy, as far as is known without asking. `last` remembers the type that was answered yes. */
static inline int
is_atomic(Run *run, PyObject *x, PyTypeObject **last)
{
    PyTypeObject *type = Py_TYPE(x);
    PlanTable *table = run->plans;
    if (type == *last) {
        return 1;
    }
    if (table->generation == rules_generation) {
        if (table->atoms[ATOM(type)] == type) {
            *last = type;
            return 1;
        }
        if (table->others[ATOM(type)] == type) {
            return 0;
        }
    }
    return is_atomic_type(table, type, last);
}

/* Whether an object is its own copy because all below it is: tuples of atoms. Nothing but Python code enters such a tuple in the memo. */
static int
is_own_copy(Run *run, PyObject *x, PyTypeObject **last, int levels)
{
    if (is_atomic(run, x, last)) {
        return 1;
    }
    if (!PyTuple_CheckExact(x) || levels == 0) {
        return 0;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(x); i++) {
        if (!is_own_copy(run, PyTuple_GET_ITEM(x, i), last, levels - 1)) {
            return 0;
        }
    }
    return 1;
}

/* The same for tuples that may be shared as they are. */
static int
tuples_are_plain(Run *run)
{
    Plan *plan = run->exposed ? NULL : plan_find(run->plans, &PyTuple_Type);
    return plan != NULL && plan->kind == KIND_TUPLE;
}

static PyObject *
copy_list(Run *run, PyObject *x, int alone)
{
    Py_ssize_t size = PyList_GET_SIZE(x), made = 0;
    PyTypeObject *last = NULL;
    while (made < size && is_atomic(run, PyList_GET_ITEM(x, made), &last)) {
        made++;
    }
    if (made == size) {
        PyObject *y = PyList_GetSlice(x, 0, size);
        if (y != NULL && memo_set(run, x, y, alone) < 0) {
            Py_CLEAR(y);
        }
        return y;
    }
    PyObject *y = PyList_New(0);
    PyObject **room = y == NULL ? NULL : PyMem_New(PyObject *, size);
    if (room == NULL) {
        Py_XDECREF(y);
        return PyErr_NoMemory();
    }
    /* It has room, and as many items as were copied, as anybody may see who finds it. */
    ((PyListObject *)y)->ob_item = room;
    ((PyListObject *)y)->allocated = size;
    for (Py_ssize_t i = 0; i < made; i++) {
        PyList_SET_ITEM(y, i, Py_NewRef(PyList_GET_ITEM(x, i)));
    }
    Py_SET_SIZE(y, made);
    if (memo_set(run, x, y, alone) < 0) {
        Py_DECREF(y);
        return NULL;
    }
    /* Python code may change the list while it is copied: its length is read anew, as a `for` loop does. */
    for (Py_ssize_t i = made; i < PyList_GET_SIZE(x); i++) {
        PyObject *item = PyList_GET_ITEM(x, i);
        int again = item == run->seen && !run->exposed;
        PyObject *copied = again ? Py_NewRef(run->seen_copy) : copy_object(run, item);
        if (copied == NULL) {
            Py_DECREF(y);
            return NULL;
        }
        if (!run->exposed && i < size && PyList_GET_SIZE(y) == i && ((PyListObject *)y)->allocated >= size) {
            PyList_SET_ITEM(y, i, copied); /* nobody else has seen it so far */
            Py_SET_SIZE(y, i + 1);
            continue;
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
changed_keys(void)
{
    PyErr_SetString(PyExc_RuntimeError, "dictionary keys changed during iteration");
    return -1;
}

static int
changed_size(void)
{
    PyErr_SetString(PyExc_RuntimeError, "dictionary changed size during iteration");
    return -1;
}

/* Whether hashing and comparing a key runs no Python code. */
static int
is_simple_key(PyObject *key)
{
    if (PyUnicode_CheckExact(key) || PyLong_CheckExact(key) || PyFloat_CheckExact(key) || PyBytes_CheckExact(key) ||
        PyBool_Check(key) || key == Py_None) {
        return 1;
    }
    if (!PyTuple_CheckExact(key) || PyTuple_GET_SIZE(key) > 8) {
        return 0;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(key); i++) {
        PyObject *item = PyTuple_GET_ITEM(key, i);
        if (PyTuple_CheckExact(item) || !is_simple_key(item)) {
            return 0;
        }
    }
    return 1;
}

/* y[key] = value for an exact dictionary; `simple` becomes 0 once a key was met that runs Python code, then others may too. */
static int
set_item(Run *run, PyObject *y, PyObject *key, PyObject *value, int *simple)
{
    if (*simple && (PyUnicode_CheckExact(key) || is_simple_key(key))) {
        return PyDict_SetItem(y, key, value);
    }
    *simple = 0;
    if (python_begins(run) < 0) {
        return -1;
    }
    int failed = PyDict_SetItem(y, key, value);
    python_ends(run);
    return failed;
}

/* Copy the items of a dictionary into another one, from a position on; `left` counts them. */
static APART int
copy_items_from(Run *run, PyObject *x, PyObject *y, Py_ssize_t position, Py_ssize_t left)
{
    Py_ssize_t size = PyDict_GET_SIZE(x);
    PyObject *key, *value;
    PyTypeObject *last_key = NULL;
    int simple = 1;
    while (PyDict_Next(x, &position, &key, &value)) {
        if (left-- == 0) {
            return changed_keys();
        }
        PyObject *new_key = key, *new_value;
        int failed;
        Py_INCREF(key);
        if (is_atomic(run, key, &last_key)) {
            new_value = copy_object(run, value); /* not owned here: how many refer to it tells whether it can be met again */
        }
        else {
            Py_INCREF(value); /* copying the key may run Python code */
            new_key = copy_object(run, key);
            new_value = new_key == NULL ? NULL : copy_object(run, value);
            Py_DECREF(value);
            Py_DECREF(key);
        }
        failed = new_value == NULL || set_item(run, y, new_key, new_value, &simple) < 0;
        Py_XDECREF(new_key);
        Py_XDECREF(new_value);
        if (failed) {
            return -1;
        }
        if (PyDict_GET_SIZE(x) != size) {
            return changed_size();
        }
    }
    return 0;
}

/* As PyDict_Next, for a dictionary that nobody changes meanwhile. `simple`: see dict_is_simple. */
static inline int
next_item(PyObject *x, int simple, Py_ssize_t *position, PyObject **key, PyObject **value)
{
#if HAVE_LAYOUTS
    if (simple) {
        Keys *keys = (Keys *)((PyDictObject *)x)->ma_keys;
        if (*position >= keys->nentries) {
            return 0;
        }
        if (keys->kind == 0) {
            HashedEntry *entry = (HashedEntry *)keys_entries(keys) + (*position)++;
            *key = entry->key;
            *value = entry->value;
        }
        else {
            UnicodeEntry *entry = (UnicodeEntry *)keys_entries(keys) + (*position)++;
            *key = entry->key;
            *value = entry->value;
        }
        return 1;
    }
#endif
    return PyDict_Next(x, position, key, value);
}

/* Whether a key is its own copy, and neither hashed nor compared by Python code. */
static inline int
is_plain_key(Run *run, PyObject *key, PyTypeObject **last)
{
    return (Py_TYPE(key) == *last && PyUnicode_CheckExact(key)) || (is_atomic(run, key, last) && is_simple_key(key));
}

/* Remove all items but the first ones. They are those of another dictionary too, so nothing goes away. */
static APART int
clone_cut(PyObject *y, Py_ssize_t count)
{
    while (PyDict_GET_SIZE(y) > count) {
        PyObject *item = PyObject_CallMethodObjArgs(y, name_popitem, NULL);
        if (item == NULL) {
            return -1;
        }
        Py_DECREF(item);
    }
    return 0;
}

/* Enter what was copied so far into all dictionaries that are being copied. The keys are simple: no Python code runs. */
static int
pending_enter(Run *run)
{
    while (run->pending != NULL) {
        Pending *pending = run->pending;
        Py_ssize_t position = 0;
        PyObject *key, *value;
        if (pending->values == NULL && clone_cut(pending->y, pending->count) < 0) {
            return -1;
        }
        for (Py_ssize_t i = 0; pending->values != NULL && i < pending->count && PyDict_Next(pending->x, &position, &key, &value); i++) {
            if (PyDict_SetItem(pending->y, key, pending->values[i] ? pending->values[i] : value) < 0) {
                return -1;
            }
        }
        pending->entered = 1;
        run->pending = pending->outer;
    }
    return 0;
}

/* The items of x, and in the place of some values their copies, into a dictionary that is empty: a clone that is then changed. */
static int
enter_all(PyObject *x, PyObject *y, PyObject **copies)
{
    if (PyDict_Update(y, x) < 0) {
        return -1;
    }
    Py_ssize_t position = 0, size = PyDict_GET_SIZE(y);
    PyObject *key, *value;
    /* The original may be untracked where the copy has to be tracked. */
    for (Py_ssize_t i = 0; i < size && !PyObject_GC_IsTracked(y); i++) {
        if (copies[i] != NULL && PyObject_IS_GC(copies[i])) {
            PyObject_GC_Track(y);
        }
    }
#if HAVE_LAYOUTS
    if (dict_is_simple(y)) {
        for (Py_ssize_t i = 0; i < size; i++) {
            if (copies[i] != NULL) {
                PyObject **slot = dict_value(y, i);
                Py_DECREF(*slot); /* the original has it still */
                *slot = copies[i];
                copies[i] = NULL;
            }
        }
        return 0;
    }
#endif
    for (Py_ssize_t i = 0; i < size && PyDict_Next(y, &position, &key, &value); i++) {
        if (copies[i] != NULL && PyDict_SetItem(y, key, copies[i]) < 0) {
            return -1;
        }
    }
    return 0;
}

#define FEW_ITEMS 12

/* Copy all items of a dictionary into one that is empty and in the memo. */
static APART int
copy_items(Run *run, PyObject *x, PyObject *y)
{
    Py_ssize_t position = 0, before = 0, size = PyDict_GET_SIZE(x);
    PyObject *key, *value, *few[FEW_ITEMS];
    PyTypeObject *last_key = NULL, *last_value = NULL;
    Py_ssize_t flat = 0, done = 0;
    if (PyDict_GET_SIZE(y) > 0) {
        return copy_items_from(run, x, y, 0, size);
    }
    int simple = dict_is_simple(x);
    while (next_item(x, simple, &position, &key, &value) && is_atomic(run, value, &last_value) && is_plain_key(run, key, &last_key)) {
        flat++;
        before = position;
    }
    if (flat == size) {
        return size ? PyDict_Update(y, x) : 0;
    }
    Pending pending = {.x = x, .y = y, .values = few, .count = flat};
    if (size > FEW_ITEMS && (pending.values = PyMem_Malloc(size * sizeof(PyObject *))) == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    memset(pending.values, 0, flat * sizeof(PyObject *));
    pending.outer = run->pending;
    run->pending = &pending;
    position = before;
    done = flat;
    int failed = 0;
    while (!failed && !pending.entered && next_item(x, simple, &position, &key, &value)) {
        if (!is_plain_key(run, key, &last_key)) {
            position = before;
            failed = pending_enter(run) < 0;
            break;
        }
        done++;
        before = position;
        if (is_atomic(run, value, &last_value)) {
            pending.values[pending.count++] = NULL;
            continue;
        }
        Py_INCREF(key);
        PyObject *copied = copy_object(run, value);
        if (copied == NULL) {
            failed = 1;
        }
        else if (!pending.entered) {
            pending.values[pending.count++] = copied;
        }
        else { /* Python code has run: from here on it finds what was copied so far, and may change the original */
            failed = PyDict_SetItem(y, key, copied) < 0 || (PyDict_GET_SIZE(x) != size && changed_size());
            Py_DECREF(copied);
        }
        Py_DECREF(key);
    }
    run->pending = pending.entered ? NULL : pending.outer;
    if (!pending.entered) {
        failed = failed || enter_all(x, y, pending.values) < 0;
    }
    for (Py_ssize_t i = 0; i < pending.count; i++) {
        Py_XDECREF(pending.values[i]);
    }
    if (pending.values != few) {
        PyMem_Free(pending.values);
    }
    if (failed) {
        return -1;
    }
    return pending.entered ? copy_items_from(run, x, y, position, size - done) : 0;
}

#if HAVE_LAYOUTS
/* The values of a clone that are not their own copies, replaced by their copies. */
static APART int
copy_values_of_clone(Run *run, PyObject *x, PyObject *y)
{
    PyTypeObject *last_key = NULL, *last_value = NULL;
    PyObject *key, *value;
    Py_ssize_t size = PyDict_GET_SIZE(x), position = 0;
    int failed = 0;
    Pending pending = {.x = x, .y = y, .outer = run->pending};
    while (next_item(x, 1, &position, &key, &value)) {
        if (!is_plain_key(run, key, &last_key)) {
            pending.entered = 1;
            position--;
            failed = clone_cut(y, position);
            break;
        }
        if (is_atomic(run, value, &last_value)) {
            continue;
        }
        pending.count = position - 1;
        run->pending = &pending;
        Py_INCREF(key);
        PyObject *copied = copy_held(run, value, 2); /* both dictionaries hold it */
        run->pending = pending.entered ? NULL : pending.outer;
        if (copied == NULL) {
            failed = -1;
        }
        else if (!pending.entered) {
            PyObject **slot = dict_value(y, position - 1);
            Py_DECREF(*slot); /* the original has it still */
            *slot = copied;
            if (!PyObject_GC_IsTracked(y) && PyObject_IS_GC(copied)) {
                PyObject_GC_Track(y);
            }
        }
        else { /* Python code has run: from here on it finds what was copied so far, and may change the original */
            failed = PyDict_SetItem(y, key, copied) < 0 || (PyDict_GET_SIZE(x) != size && changed_size()) ? -1 : 0;
            Py_DECREF(copied);
        }
        Py_DECREF(key);
        if (failed || pending.entered) {
            break;
        }
    }
    return failed || !pending.entered ? failed : copy_items_from(run, x, y, position, size - position);
}
#endif

static PyObject *
copy_dict(Run *run, PyObject *x, int alone)
{
#if HAVE_LAYOUTS
    if (dict_is_simple(x) && PyDict_GET_SIZE(x) > 0) {
        PyObject *y = PyDict_Copy(x);
        if (y == NULL) {
            return NULL;
        }
        if (dict_is_simple(y)) {
            if (memo_set(run, x, y, alone) < 0 || copy_values_of_clone(run, x, y) < 0) {
                Py_CLEAR(y);
            }
            return y;
        }
        Py_DECREF(y);
    }
#endif
    PyObject *y = PyDict_New();
    if (y == NULL || memo_set(run, x, y, alone) < 0 || copy_items(run, x, y) < 0) {
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

/* Whether the items of a set are their own copies, and none is hashed by Python code. */
static int
set_is_flat(Run *run, PyObject *x)
{
    PyTypeObject *last = NULL;
    int levels = tuples_are_plain(run) ? 3 : 0, flat = 1;
    PyObject *item;
#if PY_VERSION_HEX < 0x030d0000
    Py_ssize_t position = 0;
    Py_hash_t hash;
    while (flat && _PySet_NextEntry(x, &position, &item, &hash)) {
        flat = is_own_copy(run, item, &last, levels) && is_simple_key(item);
    }
#else
    PyObject *iterator = PyObject_GetIter(x);
    if (iterator == NULL) {
        return -1;
    }
    while (flat && (item = PyIter_Next(iterator)) != NULL) {
        flat = is_own_copy(run, item, &last, levels) && is_simple_key(item);
        Py_DECREF(item);
    }
    Py_DECREF(iterator);
    if (PyErr_Occurred()) {
        return -1;
    }
#endif
    return flat;
}

/* A set goes by its reduce value in the standard library: type, a list of its items, its attributes. Exact sets have none. */
static APART PyObject *
copy_set(Run *run, PyObject *x, int frozen)
{
    if (!frozen) {
        int flat = set_is_flat(run, x);
        if (flat) {
            return flat < 0 ? NULL : PySet_New(x);
        }
    }
    PyObject *items = PySequence_List(x);
    if (items == NULL) {
        return NULL;
    }
    int simple = 1;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(items); i++) {
        PyObject *item = PyList_GET_ITEM(items, i);
        PyObject *copied = copy_object(run, item);
        if (copied == NULL) {
            Py_DECREF(items);
            return NULL;
        }
        simple = simple && is_simple_key(copied);
        if (copied == item) {
            Py_DECREF(copied);
        }
        else {
            PyList_SetItem(items, i, copied);
        }
    }
    PyObject *known = memo_get(run, x); /* an item may have led back to the set, which is then finished already */
    if (known != NULL || PyErr_Occurred()) {
        Py_DECREF(items);
        return Py_XNewRef(known);
    }
    if (!simple && python_begins(run) < 0) { /* the items' __hash__ and __eq__ may be Python code */
        Py_DECREF(items);
        return NULL;
    }
    PyObject *y = frozen ? PyFrozenSet_New(items) : PySet_New(items);
    Py_DECREF(items);
    if (!simple) {
        python_ends(run);
    }
    return y;
}

/* ---- plain instances -------------------------------------------------------------------------------------------------------------- */

/* The dictionary of an instance, new reference; NULL without an exception where it has none yet. */
static PyObject *
instance_dict(PyObject *x)
{
    return PyObject_GenericGetDict(x, NULL);
}

/* Whether a name may be that of a protocol method. */
static inline int
is_dunder(PyObject *name)
{
    return PyUnicode_GET_LENGTH(name) > 4 && PyUnicode_READ_CHAR(name, 0) == '_' && PyUnicode_READ_CHAR(name, 1) == '_';
}

/* Whether no rule speaks about strings, which the names of attributes are. */
static inline int
names_are_atomic(Run *run)
{
    PyTypeObject *last = NULL;
    return is_atomic_type(run->plans, &PyUnicode_Type, &last);
}

/* Whether somebody besides the instance holds its dictionary, or it may have a protocol method of its own, or odd keys. */
static int
is_unusual(PyObject *dict)
{
    if (!PyDict_CheckExact(dict) || Py_REFCNT(dict) > 2) {
        return 1;
    }
    Py_ssize_t position = 0;
    PyObject *key;
    while (PyDict_Next(dict, &position, &key, NULL)) {
        if (!PyUnicode_CheckExact(key) || is_dunder(key)) {
            return 1;
        }
    }
    return 0;
}

static PyObject *copy_by_protocol(Run *run, PyObject *x);
static int set_state(Run *run, PyObject *y, PyObject *state, PyObject *setter);

/* Give the copy its attributes. Where Python code has run since it was made, it may have given it some already. */
static int
set_attributes(Run *run, PyObject *y, PyObject *attributes, unsigned long before)
{
    if (run->pythons == before && !run->exposed) {
        /* Not PyObject_GenericSetDict: it leaves the values that 3.13 keeps inside the object valid. */
        return PyObject_GenericSetAttr(y, name_dict, attributes);
    }
    PyObject *dict = PyObject_GenericGetDict(y, NULL);
    if (dict == NULL) {
        return -1;
    }
    int failed = PyDict_Update(dict, attributes);
    Py_DECREF(dict);
    return failed;
}

#define FEW_ATTRIBUTES 24

/* The same where a rule says how strings are copied. */
static APART PyObject *
copy_attributes_by_rules(Run *run, PyObject *dict, PyObject *dropped)
{
    PyObject *kept = PyDict_Copy(dict), *copied = PyDict_New();
    for (Py_ssize_t i = 0; kept != NULL && dropped != NULL && i < PyTuple_GET_SIZE(dropped); i++) {
        if (PyDict_DelItem(kept, PyTuple_GET_ITEM(dropped, i)) < 0) {
            PyErr_Clear();
        }
    }
    if (kept == NULL || copied == NULL || copy_items(run, kept, copied) < 0) {
        Py_CLEAR(copied);
    }
    Py_XDECREF(kept);
    return copied;
}

/* A dictionary with the copies of an instance's attributes, in their order, without those that are dropped (a tuple, or NULL). */
static APART PyObject *
copy_attributes(Run *run, PyObject *dict, PyObject *dropped)
{
    if (!names_are_atomic(run)) {
        return copy_attributes_by_rules(run, dict, dropped);
    }
    Py_ssize_t size = PyDict_GET_SIZE(dict), count = 0, position = 0;
    PyObject *few[2 * FEW_ATTRIBUTES], **names = few, *name, *value, *copied = NULL;
    PyTypeObject *last = NULL;
    unsigned long before = run->pythons;
    int whole = 1;
    if (size > FEW_ATTRIBUTES && (names = PyMem_Malloc(2 * size * sizeof(PyObject *))) == NULL) {
        return PyErr_NoMemory();
    }
    PyObject **values = names + (names == few ? FEW_ATTRIBUTES : size);
    Py_ssize_t seen = 0;
    while (PyDict_Next(dict, &position, &name, &value)) {
        if (seen++ == size) {
            changed_keys();
            goto done;
        }
        if (dropped != NULL) {
            int drop = PySequence_Contains(dropped, name); /* strings: no Python code */
            if (drop < 0) {
                goto done;
            }
            if (drop) {
                whole = 0;
                continue;
            }
        }
        names[count] = Py_NewRef(name);
        values[count] = is_atomic(run, value, &last) ? Py_NewRef(value) : copy_object(run, value);
        if (values[count++] == NULL) {
            goto done;
        }
        if (PyDict_GET_SIZE(dict) != size) {
            changed_size();
            goto done;
        }
    }
    if (whole && run->pythons == before) { /* it is as it was: a clone takes the least time and memory */
        copied = PyDict_Copy(dict);
        position = count = 0;
        while (copied != NULL && PyDict_Next(copied, &position, &name, &value)) {
            if (values[count] != value && PyDict_SetItem(copied, name, values[count]) < 0) {
                Py_CLEAR(copied);
            }
            count++;
        }
        count = seen;
    }
    else {
        copied = PyDict_New();
        for (Py_ssize_t i = 0; copied != NULL && i < count; i++) {
            if (PyDict_SetItem(copied, names[i], values[i]) < 0) {
                Py_CLEAR(copied);
            }
        }
    }
done:
    for (Py_ssize_t i = 0; i < count; i++) {
        Py_DECREF(names[i]);
        Py_XDECREF(values[i]);
    }
    if (names != few) {
        PyMem_Free(names);
    }
    return copied;
}

/* Whether an attribute where the class's __getattr__ looks has a __deepcopy__ in it, or may have. */
static int
finds_hook(PyObject *dict, PyObject *searched)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(searched); i++) {
        PyObject *found = PyDict_GetItemWithError(dict, PyTuple_GET_ITEM(searched, i));
        if (found == NULL) {
            if (PyErr_Occurred()) {
                return -1;
            }
            continue;
        }
        if (!PyDict_CheckExact(found) && Py_TYPE(found) != &PyODict_Type) {
            return 1;
        }
        int hook = PyDict_GET_SIZE(found) ? PyDict_Contains(found, name_deepcopy) : 0;
        if (hook) {
            return hook;
        }
    }
    return 0;
}

static int
has_any(PyObject *dict, PyObject *names)
{
    int any = 0;
    for (Py_ssize_t i = 0; !any && i < PyTuple_GET_SIZE(names); i++) {
        any = PyDict_Contains(dict, PyTuple_GET_ITEM(names, i));
    }
    return any;
}

static int
has_all(PyObject *dict, PyObject *names)
{
    int all = 1;
    for (Py_ssize_t i = 0; all > 0 && i < PyTuple_GET_SIZE(names); i++) {
        all = PyDict_Contains(dict, PyTuple_GET_ITEM(names, i));
    }
    return all;
}

/* y.__setstate__(state) */
static int
call_setstate(Run *run, PyObject *y, PyObject *state)
{
    if (python_begins(run) < 0) {
        return -1;
    }
    PyObject *done = PyObject_CallMethodObjArgs(y, name_setstate, state, NULL);
    Py_XDECREF(done);
    python_ends(run);
    return done == NULL ? -1 : 0;
}

/* As what x.__getstate__() returns says. */
static APART PyObject *
copy_by_getstate(Run *run, PyObject *x)
{
    if (python_begins(run) < 0) {
        return NULL;
    }
    Py_INCREF(x);
    PyObject *state = PyObject_CallMethodObjArgs(x, name_getstate, NULL);
    PyObject *y = state == NULL ? NULL : PyBaseObject_Type.tp_new(Py_TYPE(x), empty_tuple, NULL);
    if (y != NULL && (memo_set(run, x, y, 0) < 0 || (state != Py_None && set_state(run, y, state, Py_None) < 0))) {
        PyObject *type, *value, *traceback;
        PyErr_Fetch(&type, &value, &traceback);
        PyObject *reduced = PyTuple_Pack(3, Py_TYPE(x), empty_tuple, state);
        PyErr_Restore(type, value, traceback);
        trace(x, reduced, NULL, NULL, NULL);
        Py_XDECREF(reduced);
        Py_CLEAR(y);
    }
    Py_XDECREF(state);
    Py_DECREF(x);
    python_ends(run);
    return y;
}

static APART PyObject *
copy_stateful(Run *run, PyObject *x, Plan *plan, int alone)
{
    int calls_getstate = PyTuple_GET_ITEM(plan->state, 0) == Py_True;
    int calls_setstate = PyTuple_GET_ITEM(plan->state, 1) == Py_True;
    PyObject *dropped = PyTuple_GET_ITEM(plan->state, 2), *complete = PyTuple_GET_ITEM(plan->state, 3);
    PyObject *searched = PyTuple_GET_ITEM(plan->state, 4), *dict = NULL;
    if (plan->has_dict) {
        dict = PyObject_GenericGetDict(x, NULL);
        if (dict == NULL) {
            return NULL;
        }
        /* Where it is empty the interpreter has its own idea of what the state is. */
        int odd = is_unusual(dict) || PyDict_GET_SIZE(dict) == 0 ? 1 : finds_hook(dict, searched);
        if (odd) {
            Py_DECREF(dict);
            return odd < 0 ? NULL : copy_by_protocol(run, x);
        }
    }
    if (calls_getstate || dict == NULL) {
        Py_XDECREF(dict);
        return calls_getstate ? copy_by_getstate(run, x) : copy_by_protocol(run, x);
    }
    PyObject *kept = Py_NewRef(plan->state); /* the plan may go away while parts are copied */
    PyObject *y = PyBaseObject_Type.tp_new(Py_TYPE(x), empty_tuple, NULL);
    PyObject *state = NULL;
    unsigned long before = run->pythons;
    int failed = 1;
    if (y != NULL && memo_set(run, x, y, alone) == 0) {
        int drops = has_any(dict, dropped);
        state = drops < 0 ? NULL : copy_attributes(run, dict, drops ? dropped : NULL);
    }
    if (state != NULL) {
        int all = calls_setstate ? 0 : has_all(state, complete);
        failed = all < 0 || (all ? set_attributes(run, y, state, before) : call_setstate(run, y, state)) < 0;
    }
    Py_XDECREF(state);
    Py_DECREF(dict);
    Py_DECREF(kept);
    if (failed) {
        Py_CLEAR(y);
    }
    return y;
}

/* Copy what is in the slots; `values` owns the copies. */
static int
copy_slots(Run *run, PyObject *x, Py_ssize_t slots, const Py_ssize_t *offsets, PyObject **values)
{
    PyTypeObject *last = NULL;
    for (Py_ssize_t i = 0; i < slots; i++) {
        PyObject *value = *(PyObject **)((char *)x + offsets[i]);
        if (value == NULL) {
            continue;
        }
        values[i] = is_atomic(run, value, &last) ? Py_NewRef(value) : copy_object(run, value);
        if (values[i] == NULL) {
            return -1;
        }
    }
    return 0;
}

/* Move the copies into the slots. Where Python code has run, it may have set some. */
static void
set_slots(PyObject *y, Py_ssize_t slots, const Py_ssize_t *offsets, PyObject **values)
{
    for (Py_ssize_t i = 0; i < slots; i++) {
        if (values[i] != NULL) {
            PyObject **slot = (PyObject **)((char *)y + offsets[i]), *old = *slot;
            *slot = values[i];
            values[i] = NULL;
            Py_XDECREF(old);
        }
    }
}

#if HAVE_LAYOUTS
/* Whether all names that instances of a type share are ordinary, as is_unusual asks. */
static int
names_are_ordinary(Plan *plan, Keys *keys)
{
    while (plan->ordinary < keys->nentries) {
        PyObject *name = inline_name(keys, (int)plan->ordinary);
        if (!PyUnicode_CheckExact(name) || is_dunder(name)) {
            return 0;
        }
        plan->ordinary++;
    }
    return 1;
}

/* Python code has run while attributes were copied, and may have changed anything: the rest is read from the instance's dictionary. */
static APART int
copy_rest_of_inline(Run *run, PyObject *x, PyObject *y, const uint8_t *indices, PyObject **values, Py_ssize_t done, Py_ssize_t size,
                    unsigned long before)
{
    PyObject *from = PyObject_GenericGetDict(x, NULL), *attributes = PyDict_New(), *name, *value;
    Py_ssize_t position = 0, seen = 0;
    int failed = from == NULL || attributes == NULL || (PyDict_GET_SIZE(from) != size && changed_size());
    for (Py_ssize_t i = 0; !failed && i < done; i++) {
        failed = PyDict_SetItem(attributes, inline_name(inline_keys(Py_TYPE(y)), indices[i]), values[i]) < 0;
    }
    while (!failed && PyDict_Next(from, &position, &name, &value)) {
        if (seen++ < done) {
            continue;
        }
        if (seen > size) {
            failed = changed_keys();
            break;
        }
        Py_INCREF(name);
        PyObject *copied = copy_object(run, value);
        failed = copied == NULL || PyDict_SetItem(attributes, name, copied) < 0 || (PyDict_GET_SIZE(from) != size && changed_size());
        Py_DECREF(name);
        Py_XDECREF(copied);
    }
    failed = failed || set_attributes(run, y, attributes, before) < 0;
    Py_XDECREF(from);
    Py_XDECREF(attributes);
    return failed ? -1 : 0;
}

/* Whether the attributes are still those that were there at first. */
static int
inline_is_same(PyObject *x, PyTypeObject *type, Inline *from, const uint8_t *indices, Py_ssize_t size)
{
    if (!inline_read(x, type, from) || *from->size != size) {
        return 0;
    }
    for (Py_ssize_t i = 0; i < size; i++) {
        if (from->order[from->direction * i] != indices[i]) {
            return 0;
        }
    }
    return 1;
}

/* Copy the attributes of an instance from where they are. y has none so far; `before` is when it was made. */
static APART int
copy_inline(Run *run, PyObject *x, PyObject *y, PyTypeObject *type, Inline *from, unsigned long before)
{
    PyObject *values[MOST_INLINE];
    uint8_t indices[MOST_INLINE];
    PyTypeObject *last = NULL;
    Py_ssize_t size = *from->size, done = 0;
    unsigned long checked = before;
    int failed = 0;
    for (Py_ssize_t i = 0; i < size; i++) {
        indices[i] = from->order[from->direction * i];
    }
    while (done < size) {
        PyObject *value = from->values[indices[done]];
        value = is_atomic(run, value, &last) ? Py_NewRef(value) : copy_object(run, value);
        if (value == NULL) {
            failed = 1;
            break;
        }
        values[done++] = value;
        if (run->pythons != checked) {
            checked = run->pythons;
            if (!inline_is_same(x, type, from, indices, size)) {
                break;
            }
        }
    }
    Inline to;
    if (!failed && done == size && inline_find(y, type, &to) && *to.size == 0) {
        for (Py_ssize_t i = 0; i < size; i++) {
            inline_add(&to, indices[i], values[i]);
        }
        return 0;
    }
    failed = failed || copy_rest_of_inline(run, x, y, indices, values, done, size, before) < 0;
    for (Py_ssize_t i = 0; i < done; i++) {
        Py_DECREF(values[i]);
    }
    return failed ? -1 : 0;
}
#endif

static APART PyObject *
copy_plain(Run *run, PyObject *x, Plan *plan, int alone)
{
    PyTypeObject *type = Py_TYPE(x);
    Py_ssize_t slots = plan->slots;
    Py_ssize_t few_offsets[8], *offsets = few_offsets;
    PyObject *few_values[8], **values = few_values;
    PyObject *dict = NULL, *y = NULL, *new_dict = NULL;
    void *many = NULL;
    int in_place = 0;
#if HAVE_LAYOUTS
    Inline from = {0};
    in_place = plan->has_dict && layouts_known && inline_read(x, type, &from) && *from.size <= MOST_INLINE &&
               names_are_ordinary(plan, inline_keys(type)) && names_are_atomic(run);
#endif
    if (plan->has_dict && !in_place) {
        dict = instance_dict(x);
        if (dict == NULL) {
            return NULL;
        }
        if (is_unusual(dict)) {
            Py_DECREF(dict);
            return copy_by_protocol(run, x);
        }
    }
    if (slots > (Py_ssize_t)(sizeof few_offsets / sizeof *few_offsets)) {
        many = PyMem_Malloc(slots * (sizeof *offsets + sizeof *values));
        if (many == NULL) {
            Py_XDECREF(dict);
            return PyErr_NoMemory();
        }
        values = many;
        offsets = (Py_ssize_t *)(values + slots);
    }
    if (slots) {
        memcpy(offsets, plan->offsets, slots * sizeof *offsets); /* the plan may go away while parts are copied */
        memset(values, 0, slots * sizeof *values);
    }
    int failed = 1;
    unsigned long before = run->pythons;
    y = PyBaseObject_Type.tp_new(type, empty_tuple, NULL);
    if (y == NULL || memo_set(run, x, y, alone) < 0) {
        goto done;
    }
#if HAVE_LAYOUTS
    if (in_place && copy_inline(run, x, y, type, &from, before) < 0) {
        goto done;
    }
#endif
    if (dict != NULL && PyDict_GET_SIZE(dict) > 0) {
        new_dict = copy_attributes(run, dict, NULL);
        if (new_dict == NULL) {
            goto done;
        }
    }
    if (slots && copy_slots(run, x, slots, offsets, values) < 0) {
        goto done;
    }
    if (new_dict != NULL && set_attributes(run, y, new_dict, before) < 0) {
        goto done;
    }
    set_slots(y, slots, offsets, values);
    failed = 0;
done:
    for (Py_ssize_t i = 0; i < slots; i++) {
        Py_XDECREF(values[i]);
    }
    PyMem_Free(many);
    Py_XDECREF(dict);
    Py_XDECREF(new_dict);
    if (failed) {
        Py_CLEAR(y);
    }
    return y;
}

/* ---- by the standard library's protocols --------------------------------------------------------------------------------------------- */

/* Python code is at work in all of this section, so the log is empty and the garbage collector on, except while a part is copied. */

/* A part of a reduce value. It may be gone as soon as that is, so the table has to own it. */
static PyObject *
copy_part(Run *run, PyObject *part)
{
    Plan *plan = plan_find(run->plans, Py_TYPE(part));
    Py_INCREF(part);
    if (plan != NULL && (plan->kind == KIND_ATOMIC || (plan->kind == KIND_SHARED && !run->exposed))) {
        return part;
    }
    python_ends(run);
    PyObject *copied = copy_object(run, part);
    if (python_begins(run) < 0) {
        Py_CLEAR(copied);
    }
    Py_DECREF(part);
    return copied;
}

/* The items of a tuple, copied; new objects only. */
static PyObject *
copy_args(Run *run, PyObject *args)
{
    Py_ssize_t size = PyTuple_GET_SIZE(args);
    PyObject *copies = PyTuple_New(size);
    if (copies == NULL || size == 0) {
        return copies;
    }
    PyObject_GC_UnTrack(copies); /* unfinished: nobody may find it */
    for (Py_ssize_t i = 0; i < size; i++) {
        PyObject *copied = copy_part(run, PyTuple_GET_ITEM(args, i));
        if (copied == NULL) {
            Py_DECREF(copies);
            return NULL;
        }
        PyTuple_SET_ITEM(copies, i, copied);
    }
    PyObject_GC_Track(copies);
    return copies;
}

/* func(*args) of a reduce value, the arguments copied. As with a tuple, one may have led back to x: then `finished` becomes 1, and the copy
 * that was made there is returned. */
static PyObject *
call_with_copies(Run *run, PyObject *x, PyObject *func, PyObject *args, int *finished)
{
    PyObject *copies;
    if (PyTuple_CheckExact(args)) {
        copies = copy_args(run, args);
    }
    else {
        int any = PyObject_IsTrue(args);
        if (any <= 0) {
            return any < 0 ? NULL : PyObject_CallFunctionObjArgs(call_function, func, args, NULL);
        }
        PyObject *fixed = PySequence_Tuple(args); /* as `for arg in args` */
        copies = fixed == NULL ? NULL : copy_args(run, fixed);
        Py_XDECREF(fixed);
    }
    PyObject *y = NULL;
    if (copies != NULL) {
        y = PyTuple_GET_SIZE(copies) ? memo_get(run, x) : NULL;
        if (y != NULL) {
            *finished = 1;
            Py_INCREF(y);
        }
        else if (!PyErr_Occurred()) {
            y = PyObject_Call(func, copies, NULL);
        }
        Py_DECREF(copies);
    }
    return y;
}

/* As copier.set_state. */
static int
give_state(PyObject *y, PyObject *state, PyObject *setter)
{
    PyObject *method = NULL, *done = NULL;
    if (setter == Py_None && lookup_attribute(y, name_setstate, &method) < 0) {
        return -1;
    }
    if (method != NULL) {
        done = PyObject_CallOneArg(method, state);
        Py_DECREF(method);
    }
    else if (setter == Py_None && PyDict_CheckExact(state) && Py_TYPE(y)->tp_getattro == PyObject_GenericGetAttr) {
        PyObject *dict = PyObject_GetAttr(y, name_dict);
        if (dict == NULL || PyDict_CheckExact(dict)) {
            int failed = dict == NULL || PyDict_Update(dict, state) < 0;
            Py_XDECREF(dict);
            return failed ? -1 : 0;
        }
        done = PyObject_CallFunctionObjArgs(state_function, y, state, setter, NULL);
        Py_DECREF(dict);
    }
    else {
        done = PyObject_CallFunctionObjArgs(state_function, y, state, setter, NULL);
    }
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

static int
set_state(Run *run, PyObject *y, PyObject *state, PyObject *setter)
{
    PyObject *copied = copy_part(run, state);
    if (copied == NULL) {
        return -1;
    }
    int failed = give_state(y, copied, setter);
    Py_DECREF(copied);
    return failed;
}

static int
append_items(Run *run, PyObject *x, PyObject *reduced, PyObject *y, PyObject *items)
{
    PyObject *iterator = PyObject_GetIter(items);
    if (iterator == NULL) {
        return -1;
    }
    int failed = 0;
    PyObject *item;
    while (!failed && (item = PyIter_Next(iterator)) != NULL) {
        PyObject *copied = copy_part(run, item);
        failed = copied == NULL;
        if (failed) {
            trace(x, reduced, y, "item", item);
        }
        Py_DECREF(item);
        if (!failed) {
            PyObject *done = PyObject_CallMethodOneArg(y, name_append, copied);
            failed = done == NULL;
            Py_XDECREF(done);
        }
        Py_XDECREF(copied);
    }
    Py_DECREF(iterator);
    return failed || PyErr_Occurred() ? -1 : 0;
}

static int
set_pairs(Run *run, PyObject *x, PyObject *reduced, PyObject *y, PyObject *pairs)
{
    PyObject *iterator = PyObject_GetIter(pairs);
    if (iterator == NULL) {
        return -1;
    }
    int failed = 0;
    PyObject *pair;
    while (!failed && (pair = PyIter_Next(iterator)) != NULL) {
        PyObject *fast = pair;
        if (!PyTuple_CheckExact(pair) || PyTuple_GET_SIZE(pair) != 2) {
            fast = PyObject_CallFunctionObjArgs(pair_function, pair, NULL);
            Py_DECREF(pair);
            if (fast == NULL) {
                failed = 1;
                break;
            }
        }
        PyObject *key = copy_part(run, PyTuple_GET_ITEM(fast, 0));
        PyObject *value = key == NULL ? NULL : copy_part(run, PyTuple_GET_ITEM(fast, 1));
        failed = value == NULL;
        if (failed) {
            trace(x, reduced, y, "value", PyTuple_GET_ITEM(fast, 1));
        }
        else {
            failed = PyObject_SetItem(y, key, value) < 0;
        }
        Py_XDECREF(key);
        Py_XDECREF(value);
        Py_DECREF(fast);
    }
    Py_DECREF(iterator);
    return failed || PyErr_Occurred() ? -1 : 0;
}

/* The copy that a reduce value describes; x itself if it is a string. */
static APART PyObject *
reconstruct(Run *run, PyObject *x, PyObject *reduced)
{
    if (PyUnicode_Check(reduced)) {
        Py_INCREF(x);
        return x;
    }
    PyObject *parts;
    if (PyTuple_CheckExact(reduced) && PyTuple_GET_SIZE(reduced) >= 2 && PyTuple_GET_SIZE(reduced) <= 6) {
        parts = Py_NewRef(reduced);
    }
    else {
        parts = PyObject_CallFunctionObjArgs(six_function, reduced, NULL);
        if (parts == NULL) {
            trace(x, reduced, NULL, NULL, NULL);
            return NULL;
        }
    }
    Py_ssize_t size = PyTuple_GET_SIZE(parts);
#define PART(i) (size > (i) && PyTuple_GET_ITEM(parts, (i)) != Py_None ? PyTuple_GET_ITEM(parts, (i)) : NULL)
    int finished = 0;
    PyObject *y = call_with_copies(run, x, PyTuple_GET_ITEM(parts, 0), PyTuple_GET_ITEM(parts, 1), &finished);
    if (finished) {
        Py_DECREF(parts);
        return y;
    }
    if (y == NULL || memo_set(run, x, y, 0) < 0) {
        goto failed;
    }
    if (PART(2) != NULL && set_state(run, y, PART(2), size > 5 ? PyTuple_GET_ITEM(parts, 5) : Py_None) < 0) {
        goto failed;
    }
    if (PART(3) != NULL && append_items(run, x, reduced, y, PART(3)) < 0) {
        goto failed;
    }
    if (PART(4) != NULL && set_pairs(run, x, reduced, y, PART(4)) < 0) {
        goto failed;
    }
#undef PART
    Py_DECREF(parts);
    return y;
failed:
    trace(x, reduced, NULL, NULL, NULL);
    Py_XDECREF(y);
    Py_DECREF(parts);
    return NULL;
}

/* As copier.reduce_by_protocol. */
static PyObject *
reduce(PyObject *x, PyTypeObject *type)
{
    PyObject *reducer = PyDict_GetItemWithError(dispatch_table, (PyObject *)type);
    if (reducer != NULL && (PyObject *)Py_TYPE(reducer) == entry_type) { /* our own, that of safepickle.install() */
        reducer = PyObject_CallFunctionObjArgs(foreign_function, reducer, NULL);
        if (reducer == Py_None) {
            Py_CLEAR(reducer);
        }
    }
    else {
        Py_XINCREF(reducer);
    }
    if (reducer != NULL) {
        PyObject *reduced = PyObject_CallOneArg(reducer, x);
        Py_DECREF(reducer);
        return reduced;
    }
    if (PyErr_Occurred() || lookup_attribute(x, name_reduce_ex, &reducer) < 0) {
        return NULL;
    }
    if (reducer == NULL || reducer == Py_None) {
        Py_XDECREF(reducer);
        return PyObject_CallFunctionObjArgs(reduce_function, x, (PyObject *)type, NULL);
    }
    PyObject *reduced = PyObject_CallOneArg(reducer, number_four);
    Py_DECREF(reducer);
    return reduced;
}

static APART PyObject *
copy_by_methods(Run *run, PyObject *x)
{
    PyObject *own;
    if (lookup_attribute(x, name_deepcopy, &own) < 0) {
        return NULL;
    }
    if (own != NULL && own != Py_None) {
        PyObject *y = memo_expose(run) < 0 ? NULL : PyObject_CallOneArg(own, run->dict);
        Py_DECREF(own);
        return y;
    }
    Py_XDECREF(own);
    PyObject *reduced = reduce(x, Py_TYPE(x));
    if (reduced == NULL) {
        return NULL;
    }
    PyObject *y = reconstruct(run, x, reduced);
    Py_DECREF(reduced);
    return y;
}

static APART PyObject *
copy_by_protocol(Run *run, PyObject *x)
{
    if (PyType_IsSubtype(Py_TYPE(x), &PyType_Type)) {
        return Py_NewRef(x);
    }
    if (python_begins(run) < 0) {
        return NULL;
    }
    Py_INCREF(x);
    PyObject *y = copy_by_methods(run, x);
    Py_DECREF(x);
    python_ends(run);
    return y;
}

static APART PyObject *
copy_ordered_dict(Run *run, PyObject *x, int alone)
{
    PyObject **attributes = _PyObject_GetDictPtr(x);
    if (attributes != NULL && *attributes != NULL && PyDict_GET_SIZE(*attributes) > 0) {
        return copy_by_protocol(run, x);
    }
    /* It looks its keys up as it goes: with other keys than these all is left to Python. */
    Py_ssize_t position = 0;
    PyObject *key, *value;
    PyTypeObject *last_key = NULL, *last_value = NULL;
    int flat = 1;
    while (PyDict_Next(x, &position, &key, &value)) {
        if (!PyUnicode_CheckExact(key) && !is_simple_key(key)) {
            return copy_by_protocol(run, x);
        }
        flat = flat && is_atomic(run, key, &last_key) && is_atomic(run, value, &last_value);
    }
    PyObject *y = flat && PyDict_GET_SIZE(x) > 0 ? PyObject_CallMethodObjArgs(x, name_copy, NULL) : PyODict_New();
    if (flat) {
        if (y != NULL && memo_set(run, x, y, alone) < 0) {
            Py_CLEAR(y);
        }
        return y;
    }
    if (y == NULL || memo_set(run, x, y, alone) < 0) {
        Py_XDECREF(y);
        return NULL;
    }
    PyObject *iterator = PyObject_GetIter(x);
    if (iterator == NULL) {
        Py_DECREF(y);
        return NULL;
    }
    int failed = 0;
    while (!failed && (key = PyIter_Next(iterator)) != NULL) {
        PyObject *value = PyDict_GetItemWithError(x, key), *new_key = NULL, *new_value = NULL;
        if (value == NULL && !PyErr_Occurred()) {
            PyErr_SetObject(PyExc_KeyError, key);
        }
        if (value != NULL) {
            Py_INCREF(value);
            new_key = copy_object(run, key);
            new_value = new_key == NULL ? NULL : copy_object(run, value);
            Py_DECREF(value);
        }
        failed = new_value == NULL;
        if (!failed) {
            int simple = is_simple_key(new_key); /* a rule may make anything of it */
            failed = (!simple && python_begins(run) < 0) || PyODict_SetItem(y, new_key, new_value) < 0;
            if (!simple) {
                python_ends(run);
            }
        }
        Py_XDECREF(new_key);
        Py_XDECREF(new_value);
        Py_DECREF(key);
    }
    Py_DECREF(iterator);
    if (failed || PyErr_Occurred()) {
        Py_DECREF(y);
        return NULL;
    }
    return y;
}

static APART PyObject *
copy_default_dict(Run *run, PyObject *x, int alone)
{
    Py_ssize_t position = 0;
    PyObject *key;
    PyTypeObject *last = NULL;
    while (PyDict_Next(x, &position, &key, NULL)) {
        if (!is_simple_key(key) || !is_atomic(run, key, &last)) {
            return copy_by_protocol(run, x);
        }
    }
    PyObject *factory = PyObject_GetAttr(x, name_default_factory);
    if (factory == NULL) {
        return NULL;
    }
    Plan *plan = plan_find(run->plans, Py_TYPE(factory));
    if (plan == NULL || !(plan->kind == KIND_ATOMIC || (plan->kind == KIND_SHARED && !run->exposed))) {
        Py_DECREF(factory);
        return copy_by_protocol(run, x);
    }
    PyObject *y = PyObject_CallFunctionObjArgs((PyObject *)Py_TYPE(x), factory, NULL);
    Py_DECREF(factory);
    if (y == NULL || memo_set(run, x, y, alone) < 0 || copy_items(run, x, y) < 0) {
        Py_XDECREF(y);
        return NULL;
    }
    return y;
}

/* ---- rules ------------------------------------------------------------------------------------------------------------------------ */

/* What the plan says about a rule: see plans._mode. */
typedef enum { RULE_SHARE = 0, RULE_FUNCTION, RULE_STEPS, RULE_REDUCE } RuleMode;

/* The exception that is set, taken away and made whole. */
static PyObject *
exception_take(void)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    if (traceback != NULL) {
        PyException_SetTraceback(value, traceback);
    }
    Py_XDECREF(type);
    Py_XDECREF(traceback);
    return value;
}

/* Raise an exception that was taken away, with the traceback that it has. Takes over the reference. */
static void
exception_give(PyObject *error)
{
    PyErr_Restore(Py_NewRef((PyObject *)Py_TYPE(error)), error, PyException_GetTraceback(error));
}

/* Let a generator deal with what went wrong with a part: it yields another one, returns or raises. */
static PySendResult
throw_into(Run *run, PyObject *steps, PyObject **result)
{
    PyObject *error = exception_take();
    PyObject *traceback = PyException_GetTraceback(error);
    PySendResult status = PYGEN_ERROR;
    if (PyObject_SetAttr(run->call, name_failed, error) == 0) {
        *result = PyObject_CallMethodObjArgs(steps, name_throw, error, NULL);
        if (*result != NULL) {
            status = PYGEN_NEXT;
        }
        else if (PyErr_ExceptionMatches(PyExc_StopIteration)) {
            PyObject *stop = exception_take();
            *result = PyObject_GetAttr(stop, name_value);
            Py_DECREF(stop);
            status = *result == NULL ? PYGEN_ERROR : PYGEN_RETURN;
        }
        else {
            PyObject *raised = exception_take();
            if (raised == error && traceback != NULL) {
                PyException_SetTraceback(error, traceback); /* it went through the generator and back */
            }
            exception_give(raised);
        }
    }
    Py_XDECREF(traceback);
    Py_DECREF(error);
    return status;
}

/* Run a copy function that yields each part that it wants copied. */
static PyObject *
drive_steps(Run *run, PyObject *steps)
{
    PyObject *result = NULL;
    PySendResult status = PyIter_Send(steps, Py_None, &result);
    while (status == PYGEN_NEXT) {
        PyObject *sent = copy_part(run, result);
        Py_CLEAR(result);
        if (sent != NULL) {
            status = PyIter_Send(steps, sent, &result);
            Py_DECREF(sent);
        }
        else if (PyErr_ExceptionMatches(PyExc_Exception)) {
            status = throw_into(run, steps, &result);
        }
        else {
            return NULL;
        }
    }
    return status == PYGEN_RETURN ? result : NULL;
}

/* After a rule's function has raised: say so in the error. */
static void
blame(Run *run, PyObject *rule, PyObject *x)
{
    if (!PyErr_ExceptionMatches(PyExc_Exception)) {
        return;
    }
    PyObject *error = exception_take();
    PyObject *done = PyObject_CallFunctionObjArgs(blame_function, rule, x, error, run->dict, NULL);
    if (done != NULL) {
        Py_DECREF(done);
        exception_give(error);
        return;
    }
    PyObject *named = exception_take();
    if (named != error) {
        PyException_SetContext(named, Py_NewRef(error));
    }
    Py_DECREF(error);
    exception_give(named);
}

static PyObject *
copy_by_rule(Run *run, PyObject *x, PyObject *plan)
{
    long mode = PyLong_AsLong(PyTuple_GET_ITEM(plan, 0));
    PyObject *rule = PyTuple_GET_ITEM(plan, 1), *y;
    if (mode == RULE_SHARE) {
        return PyObject_CallFunctionObjArgs(apply_function, rule, x, Py_None, NULL);
    }
    if (mode == RULE_REDUCE) {
        PyObject *reduced = PyObject_CallFunctionObjArgs(reduced_function, rule, x, NULL);
        if (reduced == NULL || reduced == Py_NotImplemented) {
            return reduced;
        }
        y = reconstruct(run, x, reduced);
        Py_DECREF(reduced);
        return y;
    }
    if (memo_expose(run) < 0) {
        return NULL;
    }
    PyObject *made = PyObject_CallFunctionObjArgs(PyTuple_GET_ITEM(plan, 2), x, run->dict, NULL);
    if (mode == RULE_STEPS && made != NULL) {
        y = drive_steps(run, made);
        Py_DECREF(made);
        made = y;
    }
    if (made == NULL) {
        blame(run, rule, x);
    }
    return made;
}

static PyObject *copy_kind(Run *run, PyObject *x, Kind kind, Plan *plan, int alone);

#include "tensors.h"

static APART PyObject *
copy_by_rules(Run *run, PyObject *x, Plan *plan)
{
    PyObject *rules = Py_NewRef(plan->rules); /* the plan may go away while rules run */
    Kind fallback = plan->fallback;
    if (plan->kind == KIND_TENSOR) {
        PyObject *y = copy_plain_tensor(run, (TensorCopier *)PyTuple_GET_ITEM(PyTuple_GET_ITEM(rules, 0), 2), x);
        if (y != Py_NotImplemented) {
            Py_DECREF(rules);
            return y;
        }
        Py_DECREF(y);
    }
    if (python_begins(run) < 0) {
        Py_DECREF(rules);
        return NULL;
    }
    PyObject *y = Py_NewRef(Py_NotImplemented);
    for (Py_ssize_t i = 0; y == Py_NotImplemented && i < PyTuple_GET_SIZE(rules); i++) {
        Py_DECREF(y);
        y = copy_by_rule(run, x, PyTuple_GET_ITEM(rules, i));
    }
    Py_DECREF(rules);
    python_ends(run);
    if (y != Py_NotImplemented) {
        return y;
    }
    Py_DECREF(y);
    return copy_kind(run, x, fallback, NULL, 0);
}

static PyObject *
copy_enum(Run *run, PyObject *x)
{
    PyObject *dict = PyObject_GenericGetDict(x, NULL);
    if (dict == NULL) {
        return NULL;
    }
    int own = PyDict_Contains(dict, name_deepcopy);
    Py_DECREF(dict);
    if (own) {
        return own < 0 ? NULL : copy_by_protocol(run, x);
    }
    return Py_NewRef(x);
}

static PyObject *
copy_kind(Run *run, PyObject *x, Kind kind, Plan *plan, int alone)
{
    switch (kind) {
    case KIND_ATOMIC:
    case KIND_SHARED:
        return Py_NewRef(x);
    case KIND_ENUM:
        return copy_enum(run, x);
    case KIND_LIST:
        return copy_list(run, x, alone);
    case KIND_DICT:
        return copy_dict(run, x, alone);
    case KIND_TUPLE: {
        PyTypeObject *last = NULL;
        if (plan != NULL && !run->exposed && is_own_copy(run, x, &last, 3)) {
            return Py_NewRef(x);
        }
        return copy_tuple(run, x);
    }
    case KIND_RULES:
    case KIND_TENSOR:
        return copy_by_rules(run, x, plan);
    case KIND_PLAIN:
        return copy_plain(run, x, plan, alone);
    case KIND_STATEFUL:
        return copy_stateful(run, x, plan, alone);
    case KIND_SET:
    case KIND_FROZENSET:
        return copy_set(run, x, kind == KIND_FROZENSET);
    case KIND_BYTEARRAY:
        return PyByteArray_FromStringAndSize(PyByteArray_AS_STRING(x), PyByteArray_GET_SIZE(x));
    case KIND_ORDERED_DICT:
        return copy_ordered_dict(run, x, alone);
    case KIND_DEFAULT_DICT:
        return copy_default_dict(run, x, alone);
    default:
        return copy_by_protocol(run, x);
    }
}

/* Whether a function has cells or attributes, or a default that is no atom: see Rule.holding. */
static int
holds_objects(Run *run, PyFunctionObject *x)
{
    PyTypeObject *last = NULL;
    PyObject *key, *value;
    Py_ssize_t position = 0;
    if ((x->func_closure != NULL && PyTuple_GET_SIZE(x->func_closure) > 0) || (x->func_dict != NULL && PyDict_GET_SIZE(x->func_dict) > 0)) {
        return 1;
    }
    for (Py_ssize_t i = 0; x->func_defaults != NULL && i < PyTuple_GET_SIZE(x->func_defaults); i++) {
        if (!is_atomic(run, PyTuple_GET_ITEM(x->func_defaults, i), &last)) {
            return 1;
        }
    }
    while (x->func_kwdefaults != NULL && PyDict_Next(x->func_kwdefaults, &position, &key, &value)) {
        if (!is_atomic(run, value, &last)) {
            return 1;
        }
    }
    return 0;
}

/* Whether a rule may have anything to say about an object: see Rule.concerns. */
static int
is_concerned(Run *run, PyObject *x, PyObject *concerns)
{
    if (PyFunction_Check(x)) {
        return holds_objects(run, (PyFunctionObject *)x);
    }
    return has_attributes_of_concern(x, concerns);
}

static inline int
enters_itself(Kind kind)
{
    return kind == KIND_LIST || kind == KIND_DICT || kind == KIND_PLAIN || kind == KIND_ORDERED_DICT ||
           kind == KIND_DEFAULT_DICT || kind == KIND_STATEFUL;
}

/* As copy_object, where so many references to x are known to come from one and the same container. */
static PyObject *
copy_held(Run *run, PyObject *x, Py_ssize_t holders)
{
    int alone = Py_REFCNT(x) == holders, owned = 0;
    unsigned long before = run->pythons;
    Plan *plan = plan_find(run->plans, Py_TYPE(x));
    if (plan == NULL) {
        Py_INCREF(x); /* Python code may drop the last reference */
        owned = 1;
        plan = plan_ask(run, Py_TYPE(x));
        if (plan == NULL) {
            Py_DECREF(x);
            return NULL;
        }
        alone = 0;
    }
    Kind kind = plan->kind;
    if (kind == KIND_ATOMIC) {
        return owned ? x : Py_NewRef(x);
    }
    if (kind == KIND_RULES && plan->concerns != NULL) {
        int concerned = is_concerned(run, x, plan->concerns);
        if (concerned < 0) {
            if (owned) {
                Py_DECREF(x);
            }
            return NULL;
        }
        kind = concerned ? KIND_RULES : plan->otherwise;
    }
    if (kind == KIND_SHARED && !run->exposed) { /* nothing but Python code enters such an object */
        return owned ? x : Py_NewRef(x);
    }
    /* A list, a dictionary or an instance is in the memo before anything else happens, which then keeps it. */
    if (!owned && (run->exposed || !enters_itself(kind))) {
        Py_INCREF(x);
        owned = 1;
    }
    PyObject *y = NULL;
    if (run->exposed || !alone) {
        y = memo_get(run, x);
        if (y != NULL || PyErr_Occurred()) {
            Py_XINCREF(y);
            goto done;
        }
    }
    if (stack_is_low()) {
        goto done;
    }
    y = copy_kind(run, x, kind, plan, alone);
    stack_leave();
    if (y == NULL) { /* that a value was at hand is what tells of the items of a dictionary of another type */
        int is_dict = kind == KIND_ORDERED_DICT || kind == KIND_DEFAULT_DICT;
        trace(x, NULL, NULL, "value", is_dict ? Py_None : NULL);
    }
    /* Python code that ran meanwhile may have taken x out of its container: then nothing but the table keeps it. */
    if (y != NULL && y != x && memo_finish(run, x, y, enters_itself(kind), alone && run->pythons == before, run->pythons == before) < 0) {
        Py_CLEAR(y);
    }
done:
    if (owned) {
        Py_DECREF(x);
    }
    return y;
}

/* ---- calls from Python -------------------------------------------------------------------------------------------------------------- */

static void
run_clear(Run *run)
{
    while (run->logged) {
        Py_DECREF(log_pop(run).copy);
    }
    if (run->table != run->few) {
        for (size_t i = 0; i <= run->mask; i++) {
            if (run->table[i].source != NULL) {
                Py_DECREF(run->table[i].source);
                Py_DECREF(run->table[i].copy);
            }
        }
        PyMem_Free(run->table);
    }
    else {
        for (size_t i = 0; run->used > 0 && i < FEW; i++) {
            if (run->few[i].source != NULL) {
                Pair pair = run->few[i];
                run->few[i] = (Pair){NULL, NULL};
                run->used--;
                Py_DECREF(pair.source);
                Py_DECREF(pair.copy);
            }
        }
    }
    Py_XDECREF(run->own_plans);
    plan_clear(&run->passing);
    Py_XDECREF(run->stored);
    Py_XDECREF(run->gathered);
    Py_XDECREF(run->call);
    Py_XDECREF(run->keep_key);
    Py_XDECREF(run->dict);
    Py_DECREF(run->registry);
    Py_XDECREF(run->options);
    Py_DECREF(run->root);
}

static Run *spare_run;

static void
run_release(Run *run)
{
    if (--run->users > 0) {
        return;
    }
    run_clear(run);
    if (spare_run == NULL) {
        spare_run = run;
    }
    else {
        PyMem_Free(run);
    }
}

static void
run_leave(Run *run)
{
    Run **link = &runs;
    while (*link != run) {
        link = &(*link)->outer;
    }
    *link = run->outer;
    if (run->call != NULL) {
        PyObject *type, *value, *traceback;
        PyErr_Fetch(&type, &value, &traceback);
        PyObject *done = PyObject_CallFunctionObjArgs(forget_function, run->call, NULL);
        if (done == NULL) {
            PyErr_WriteUnraisable(forget_function);
        }
        Py_XDECREF(done);
        PyErr_Restore(type, value, traceback);
    }
}

/* Bind rules that wait for a module which has been imported meanwhile: registry.refresh(), where there may be any. */
static int
refresh(PyObject *registry)
{
    static Py_ssize_t modules_seen = -1;
    static uint64_t generation_seen;
    Py_ssize_t modules = PyDict_GET_SIZE(PyImport_GetModuleDict());
    if (registry == default_registry && modules == modules_seen && generation_seen == rules_generation) {
        return 0;
    }
    PyObject *done = PyObject_CallFunctionObjArgs(refreshed_function, registry, NULL);
    if (done == NULL) {
        return -1;
    }
    if (registry == default_registry) {
        modules_seen = done == Py_True ? modules : -1;
        generation_seen = rules_generation;
    }
    Py_DECREF(done);
    return 0;
}

/* The plans by the rules of a registry, which keeps them. */
typedef struct {
    PyObject_HEAD
    PlanTable table;
} Plans;

static int
plans_traverse(PyObject *self, visitproc visit, void *arg)
{
    PlanTable *table = &((Plans *)self)->table;
    for (size_t i = 0; table->plans != NULL && i <= table->mask; i++) {
        Py_VISIT(table->plans[i].rules);
        Py_VISIT(table->plans[i].state);
    }
    return 0;
}

static int
plans_tp_clear(PyObject *self)
{
    plans_clear(&((Plans *)self)->table);
    return 0;
}

static void
plans_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    plans_clear(&((Plans *)self)->table);
    PyObject_GC_Del(self);
}

static PyTypeObject PlansType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "safepickle._native._core.Plans",
    .tp_basicsize = sizeof(Plans),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_dealloc = plans_dealloc,
    .tp_traverse = plans_traverse,
    .tp_clear = plans_tp_clear,
    .tp_doc = "How the C core copies objects by the rules of a registry.",
};

static PyObject *
plans_of(PyObject *registry)
{
    PyObject *found = NULL;
    if (lookup_attribute(registry, name_plans, &found) < 0) {
        return NULL;
    }
    if (found != NULL && Py_TYPE(found) == &PlansType) {
        return found;
    }
    Py_XDECREF(found);
    Plans *made = PyObject_GC_New(Plans, &PlansType);
    if (made == NULL) {
        return NULL;
    }
    memset(&made->table, 0, sizeof made->table);
    PyObject_GC_Track((PyObject *)made);
    if (PyObject_SetAttr(registry, name_plans, (PyObject *)made) < 0) {
        Py_CLEAR(made);
    }
    return (PyObject *)made;
}

/* A copy of x in a run of its own. `memo` is a dictionary of the caller's or NULL, `options` a dictionary or NULL. */
static PyObject *
copy_root(PyObject *x, PyObject *registry, PyObject *memo, PyObject *options)
{
    if (refresh(registry) < 0) {
        return NULL;
    }
    /* Not on the stack: it is found from other threads, and a library of coroutines may move the stack away while Python code runs. */
    Run *run = spare_run;
    spare_run = NULL;
    if (run == NULL) { /* else its table is empty already */
        run = PyMem_Calloc(1, sizeof(Run));
        if (run == NULL) {
            return PyErr_NoMemory();
        }
    }
    memset(run, 0, offsetof(Run, few_logged));
    run->table = run->few;
    run->mask = FEW - 1;
    run->root = Py_NewRef(x); /* two refer to it now, so the root is always in the table */
    run->registry = Py_NewRef(registry);
    run->options = Py_XNewRef(options);
    run->dict = Py_XNewRef(memo);
    run->plans = &default_plans;
    if (registry != default_registry) {
        run->own_plans = plans_of(registry);
        if (run->own_plans == NULL) {
            run->users = 1;
            run_release(run);
            return NULL;
        }
        run->plans = &((Plans *)run->own_plans)->table;
    }
#ifdef HAVE_STACK_LIMIT
    if (stack_lowest == NULL) {
        stack_ask();
    }
#endif
    run->users = 1;
    run->outer = runs;
    runs = run;
    PyObject *y = NULL;
    if (memo == NULL || memo_expose(run) == 0) {
        python_ends(run);
        y = copy_object(run, run->root);
        if (run->tensors && tensors_end(run) < 0) {
            Py_CLEAR(y);
        }
    }
    gc_resume(run);
    run_leave(run);
    run_release(run);
    return y;
}

PyDoc_STRVAR(copy_doc,
"copy(x, registry, memo, options)\n--\n\n"
"A deep copy of x, as copier.deepcopy makes it. memo is None or a dictionary of the caller's; options is a dictionary, or None for the registry's.");

static PyObject *
core_copy(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    if (count != 4) {
        PyErr_SetString(PyExc_TypeError, "copy takes four arguments");
        return NULL;
    }
    return copy_root(args[0], args[1], args[2] == Py_None ? NULL : args[2], args[3] == Py_None ? NULL : args[3]);
}

/* A part, in a run that Python code has seen. */
static PyObject *
copy_nested(Run *run, PyObject *x)
{
#ifdef HAVE_STACK_LIMIT
    if (stack_lowest == NULL) { /* another thread than the one that the run is in */
        stack_ask();
    }
#endif
    run->users++;
    python_ends(run);
    PyObject *y = copy_object(run, x);
    if (run->tensors && tensors_end(run) < 0) {
        Py_CLEAR(y);
    }
    gc_resume(run);
    run_release(run);
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
        if (run->exposed && run->dict == args[1]) {
            return copy_nested(run, args[0]);
        }
    }
    Py_RETURN_NOTIMPLEMENTED;
}

/* ---- safepickle.deepcopy ------------------------------------------------------------------------------------------------------------------ */

/* As the definition, copier.deepcopy in Python, which is called for all but the two most common forms of a call. */

static THREAD_LOCAL int entered; /* how many calls are at work in this thread: they leave no frame by which deep.is_nested could see them */

/* Whether the core is in use and the default registry has no settings. */
static int
is_ordinary(void)
{
    static PyObject *settings; /* borrowed from the registry */
#if PY_VERSION_HEX < 0x030c0000
    static uint64_t globals_seen, registry_seen;
    if (globals_seen == ((PyDictObject *)copier_globals)->ma_version_tag &&
        registry_seen == ((PyDictObject *)default_registry_vars)->ma_version_tag) {
        return PyDict_GET_SIZE(settings) == 0;
    }
    globals_seen = ((PyDictObject *)copier_globals)->ma_version_tag;
    registry_seen = ((PyDictObject *)default_registry_vars)->ma_version_tag;
#endif
    PyObject *core = PyDict_GetItemWithError(copier_globals, name_core);
    settings = PyDict_GetItemWithError(default_registry_vars, name_settings);
    if (core != NULL && core != Py_None && settings != NULL && PyDict_CheckExact(settings)) {
        return PyDict_GET_SIZE(settings) == 0;
    }
#if PY_VERSION_HEX < 0x030c0000
    globals_seen = 0; /* no dictionary has that version */
#endif
    return 0;
}

/* deepcopy(x) */
static PyObject *
deepcopy_alone(PyObject *x)
{
    PyTypeObject *last = NULL;
    if (is_atomic_type(&default_plans, Py_TYPE(x), &last)) {
        return Py_NewRef(x);
    }
    if (!is_ordinary()) {
        return PyErr_Occurred() ? NULL : PyObject_CallOneArg(python_deepcopy, x);
    }
    entered++;
    PyObject *y = copy_root(x, default_registry, NULL, NULL);
    entered--;
    if (y != NULL || !PyErr_ExceptionMatches(PyExc_Exception)) {
        return y;
    }
    PyObject *error = exception_take();
    y = PyObject_CallFunctionObjArgs(failed_function, x, error, NULL);
    Py_DECREF(error);
    return y;
}

/* deepcopy(part, memo) of a run that is at work; NotImplemented if there is none. */
static PyObject *
deepcopy_part(PyObject *x, PyObject *memo)
{
    PyObject *key = PyLong_FromVoidPtr(memo);
    if (key == NULL) {
        return NULL;
    }
    PyObject *call = PyDict_GetItemWithError(running, key);
    Py_DECREF(key);
    Run *run = call == NULL ? NULL : runs;
    while (run != NULL && run->call != call) {
        run = run->outer;
    }
    if (run == NULL || run->dict != memo) {
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_NotImplemented);
    }
    Py_INCREF(call);
    PyObject *y = copy_nested(run, x);
    if (y == NULL && PyErr_ExceptionMatches(PyExc_Exception)) {
        PyObject *error = exception_take();
        int noted = PyObject_SetAttr(call, name_failed, error);
        if (noted < 0) {
            Py_DECREF(error);
        }
        else {
            exception_give(error);
        }
    }
    Py_DECREF(call);
    return y;
}

static PyObject *
core_deepcopy(PyObject *module, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    if (names == NULL && count == 1) {
        return deepcopy_alone(args[0]);
    }
    if (names == NULL && count == 2 && PyDict_CheckExact(args[1])) {
        PyObject *y = deepcopy_part(args[0], args[1]);
        if (y != Py_NotImplemented) {
            return y;
        }
        Py_DECREF(y);
    }
    return PyObject_Vectorcall(python_deepcopy, args, (size_t)count, names);
}

static PyMethodDef deepcopy_method = {"deepcopy", (PyCFunction)(void (*)(void))core_deepcopy, METH_FASTCALL | METH_KEYWORDS, NULL};

PyDoc_STRVAR(entry_doc, "entry(definition)\n--\n\nThe function that is deepcopy, where `definition` is what it is in Python.");

static PyObject *
core_entry(PyObject *module, PyObject *function)
{
    PyObject *doc = PyObject_GetAttrString(function, "__doc__"), *name = PyObject_GetAttrString(function, "__module__"), *made = NULL;
    PyObject *text = doc == NULL ? NULL : PyUnicode_FromFormat(
        "deepcopy(x, memo=None, _nil=None, *, registry=None, nonleaf=None)\n--\n\n%S", doc);
    const char *utf8 = text == NULL ? NULL : PyUnicode_AsUTF8(text);
    if (utf8 != NULL && name != NULL) {
        deepcopy_method.ml_doc = utf8;
        Py_XSETREF(python_deepcopy_doc, Py_NewRef(text)); /* keeps it */
        Py_XSETREF(python_deepcopy, Py_NewRef(function));
        made = PyCFunction_NewEx(&deepcopy_method, NULL, name);
    }
    Py_XDECREF(doc);
    Py_XDECREF(name);
    Py_XDECREF(text);
    return made;
}

PyDoc_STRVAR(entered_doc, "entered()\n--\n\nHow many calls of deepcopy(x) are at work in this thread.");

static PyObject *
core_entered(PyObject *module, PyObject *unused)
{
    return PyLong_FromLong(entered);
}

PyDoc_STRVAR(invalidate_doc, "invalidate()\n--\n\nForget how types are copied: a rule has changed.");

static PyObject *
core_invalidate(PyObject *module, PyObject *unused)
{
    rules_generation++;
    Py_RETURN_NONE;
}

PyDoc_STRVAR(setup_doc,
"setup(copier, registry)\n--\n\n"
"Tell the core where the functions are that it calls. Returns the numbers of the kinds of plans.");

static PyObject *
core_setup(PyObject *module, PyObject *args)
{
    PyObject *copier, *registry;
    if (!PyArg_ParseTuple(args, "OO", &copier, &registry)) {
        return NULL;
    }
    if (default_registry != NULL) {
        PyErr_SetString(PyExc_ImportError, "the C core serves another copy of safepickle in this process");
        return NULL;
    }
    if (take(copier, "_native_plan", &plan_function) < 0 || take(copier, "_expose", &expose_function) < 0 ||
        take(copier, "_forget", &forget_function) < 0 || take(copier, "set_state", &state_function) < 0 ||
        take(copier, "reduce_by_protocol", &reduce_function) < 0 || take(copier, "_applied", &apply_function) < 0 ||
        take(copier, "_reduced", &reduced_function) < 0 || take(copier, "_blame", &blame_function) < 0 ||
        take(copier, "_six", &six_function) < 0 || take(copier, "_called", &call_function) < 0 ||
        take(copier, "_pair", &pair_function) < 0 ||
        take(copier, "_Entry", &entry_type) < 0 || take(copier, "_foreign", &foreign_function) < 0 || take(copier, "_refreshed", &refreshed_function) < 0 ||
        take(registry, "default_registry", &default_registry) < 0 ||
        take(copier, "_native_failed", &failed_function) < 0 || take(copier, "_running", &running) < 0 ||
        take(default_registry, "__dict__", &default_registry_vars) < 0) {
        return NULL;
    }
    if (!PyDict_CheckExact(running) || !PyDict_CheckExact(default_registry_vars)) {
        PyErr_SetString(PyExc_TypeError, "copier._running and the variables of a registry must be dictionaries");
        return NULL;
    }
    if (take(copier, "__dict__", &copier_globals) < 0) {
        return NULL;
    }
    PyObject *file = PyDict_GetItemString(copier_globals, "__file__");
    const char *name = file != NULL && PyUnicode_Check(file) ? PyUnicode_AsUTF8(file) : "copier.py";
    trace_code = name == NULL ? NULL : PyCode_NewEmpty(name, "_copy", 1);
    if (trace_code == NULL) {
        return NULL;
    }
    PyObject *copyreg = PyImport_ImportModule("copyreg");
    if (copyreg == NULL || take(copyreg, "dispatch_table", &dispatch_table) < 0) {
        Py_XDECREF(copyreg);
        return NULL;
    }
    Py_DECREF(copyreg);
    if (registered_watch() < 0) {
        return NULL;
    }
    rules_generation++;
    static const struct { const char *name; Kind kind; } kinds[] = {
        {"atomic", KIND_ATOMIC}, {"shared", KIND_SHARED}, {"enum", KIND_ENUM}, {"list", KIND_LIST}, {"dict", KIND_DICT},
        {"tuple", KIND_TUPLE}, {"set", KIND_SET}, {"frozenset", KIND_FROZENSET}, {"bytearray", KIND_BYTEARRAY},
        {"plain", KIND_PLAIN}, {"stateful", KIND_STATEFUL}, {"ordered_dict", KIND_ORDERED_DICT}, {"default_dict", KIND_DEFAULT_DICT}, {"rules", KIND_RULES}, {"tensor", KIND_TENSOR},
        {"protocol", KIND_PROTOCOL},
    };
    PyObject *numbers = PyDict_New();
    for (size_t i = 0; numbers != NULL && i < sizeof kinds / sizeof *kinds; i++) {
        PyObject *number = PyLong_FromLong(kinds[i].kind);
        if (number == NULL || PyDict_SetItemString(numbers, kinds[i].name, number) < 0) {
            Py_CLEAR(numbers);
        }
        Py_XDECREF(number);
    }
    return numbers;
}

/* ---- the module ------------------------------------------------------------------------------------------------------------------- */

static PyMethodDef methods[] = {
    {"copy", (PyCFunction)(void (*)(void))core_copy, METH_FASTCALL, copy_doc},
    {"nested", (PyCFunction)(void (*)(void))core_nested, METH_FASTCALL, nested_doc},
    {"fill_memory", (PyCFunction)(void (*)(void))core_fill_memory, METH_FASTCALL, fill_memory_doc},
    {"tensor_copier", core_tensor_copier, METH_VARARGS, tensor_copier_doc},
    {"tensor_reducer", core_tensor_reducer, METH_VARARGS, tensor_reducer_doc},
    {"entry", core_entry, METH_O, entry_doc},
    {"entered", core_entered, METH_NOARGS, entered_doc},
    {"invalidate", core_invalidate, METH_NOARGS, invalidate_doc},
    {"setup", core_setup, METH_VARARGS, setup_doc},
    {NULL, NULL, 0, NULL},
};

static int
module_exec(PyObject *module)
{
    if (PyInterpreterState_Get() != PyInterpreterState_Main()) {
        PyErr_SetString(PyExc_ImportError, "the C core serves the main interpreter only");
        return -1;
    }
    if (PyModule_AddIntConstant(module, "INTERFACE", SAFEPICKLE_CORE_INTERFACE) < 0) {
        return -1;
    }
    if (empty_tuple != NULL) {
        return 0; /* imported again */
    }
    empty_tuple = PyTuple_New(0);
#if HAVE_LAYOUTS
    const char *portable = getenv("SAFEPICKLE_PORTABLE");
    if (empty_tuple != NULL && (portable == NULL || *portable == '\0' || strcmp(portable, "0") == 0)) {
        layouts_try(empty_tuple);
    }
#endif
    name_deepcopy = PyUnicode_InternFromString("__deepcopy__");
    name_append = PyUnicode_InternFromString("append");
    name_dict = PyUnicode_InternFromString("__dict__");
    name_failed = PyUnicode_InternFromString("failed");
    name_throw = PyUnicode_InternFromString("throw");
    name_value = PyUnicode_InternFromString("value");
    name_reduce_ex = PyUnicode_InternFromString("__reduce_ex__");
    name_default_factory = PyUnicode_InternFromString("default_factory");
    name_getstate = PyUnicode_InternFromString("__getstate__");
    name_setstate = PyUnicode_InternFromString("__setstate__");
    name_settings = PyUnicode_InternFromString("settings");
    name_core = PyUnicode_InternFromString("core");
    name_popitem = PyUnicode_InternFromString("popitem");
    name_copy = PyUnicode_InternFromString("copy");
    name_plans = PyUnicode_InternFromString("_native_plans");
    if (PyType_Ready(&PlansType) < 0) {
        return -1;
    }
    number_four = PyLong_FromLong(4);
    name_torch = PyUnicode_InternFromString("torch");
    name_class = PyUnicode_InternFromString("__class__");
    name_unguarded = PyUnicode_InternFromString("_dynamo_static_input_type");
    name_by_value = PyUnicode_InternFromString("_by_value");
    name_torch_quick = PyUnicode_InternFromString("torch_quick");
    if (!(name_torch && name_class && name_unguarded && name_by_value && name_torch_quick) || PyType_Ready(&TensorCopierType) < 0 ||
        PyType_Ready(&TensorReducerType) < 0 || PyModule_AddObjectRef(module, "TensorCopier", (PyObject *)&TensorCopierType) < 0) {
        return -1;
    }
    return name_popitem && name_copy && name_plans && name_core && name_settings && name_getstate && name_setstate && name_default_factory && empty_tuple && name_reduce_ex && number_four && name_deepcopy && name_append && name_dict && name_failed && name_throw && name_value ? 0 : -1;
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
