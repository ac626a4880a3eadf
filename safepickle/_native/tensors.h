/* Plain tensors in C: part of _core.c. The definition is copy_tensor in safepickle/reducers/torch_tensors.py, which is asked about
 * everything that is not as plain as this: exact types, a storage that no other tensor of the copy shares, no hooks, no modes.
 *
 * Nothing here knows how torch lays its objects out: its getters and methods are called through their descriptors. Cloning lets other
 * threads run, if there are any.
 */

enum {
    GET_DTYPE, GET_IS_CPU, GET_IS_NESTED, GET_REQUIRES_GRAD, GET_IS_LEAF, GET_GRAD, GET_HOOKS, GET_AFTER_GRAD, GET_NBYTES,
    GETTERS,
};
static const char *const getter_names[GETTERS] = {
    "dtype", "is_cpu", "is_nested", "requires_grad", "is_leaf", "grad", "_backward_hooks", "_post_accumulate_grad_hooks",
    "nbytes",
};
enum { CALL_STORAGE, CALL_CLONE, CALL_IS_NEG, CALL_IS_CONTIGUOUS, CALL_STRIDE, CALL_DATA_PTR, CALL_SIZE, METHODS };
static const char *const method_names[METHODS] = {
    "untyped_storage", "clone", "is_neg", "is_contiguous", "stride", "data_ptr", "size",
};
enum { IS_GRAD_ENABLED, SET_GRAD_ENABLED, FUNCTION_MODES, DISPATCH_MODES, EMPTY_LIKE, FUNCTIONS };
static const char *const function_names[FUNCTIONS] = {
    "is_grad_enabled", "_set_grad_enabled", "_len_torch_function_stack", "_len_torch_dispatch_stack", "empty_like",
};

#define MOST_DTYPES 16
#define MOST_GATHERED 4

typedef struct TensorReducer TensorReducer;

/* The copy function of the rule for tensors: called from Python it is `copy`; the core copies plain tensors without it. */
typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *copy;                 /* (tensor, memo) -> copy: the definition */
    PyObject *settle;               /* (sources, copies): brings the contents of tensors on devices whose copies are gathered */
    PyTypeObject *tensor, *parameter;
    PyObject *dtypes[MOST_DTYPES];  /* borrowed from `kept` */
    Py_ssize_t dtype_count;
    PyObject *getters[GETTERS];
    PyObject *gathered[MOST_GATHERED]; /* getters such as is_cuda */
    Py_ssize_t gathered_count;
    PyObject *methods[METHODS];
    PyObject *functions[FUNCTIONS];
    PyObject *storage_key, *storage_nbytes;
    PyObject *kept;                 /* owns all that is borrowed */
} TensorCopier;

static inline PyObject *
descriptor_get(PyObject *descriptor, PyObject *x)
{
    PyGetSetDef *def = ((PyGetSetDescrObject *)descriptor)->d_getset;
    return def->get(x, def->closure);
}

/* Whether a getter says exactly `expected`; what it raises counts as no. */
static inline int
getter_is(PyObject *descriptor, PyObject *x, PyObject *expected)
{
    PyObject *found = descriptor_get(descriptor, x);
    if (found == NULL) {
        PyErr_Clear();
        return 0;
    }
    int is = found == expected;
    Py_DECREF(found);
    return is;
}

static inline PyObject *
method_call(PyObject *method, PyObject *x)
{
    return PyObject_Vectorcall(method, &x, 1, NULL);
}

static int
method_is(PyObject *method, PyObject *x, PyObject *expected)
{
    PyObject *found = method_call(method, x);
    if (found == NULL) {
        PyErr_Clear();
        return 0;
    }
    int is = found == expected;
    Py_DECREF(found);
    return is;
}

/* The number that a function without arguments returns. */
static long
function_number(PyObject *function)
{
    PyObject *found = PyObject_CallNoArgs(function);
    if (found == NULL) {
        return -1;
    }
    long number = PyLong_AsLong(found);
    Py_DECREF(found);
    return number;
}

/* Switch graphs off or on. */
static int
set_graphs(PyObject *function, PyObject *enabled)
{
    PyObject *done = PyObject_Vectorcall(function, &enabled, 1, NULL);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

/* Bring the contents of gathered tensors: somebody is about to look at them. */
static int
settle_gathered(Run *run)
{
    PyObject *gathered = run->gathered;
    run->gathered = NULL;
    PyObject *settle = PyTuple_GET_ITEM(gathered, 0), *sources = PyTuple_GET_ITEM(gathered, 1), *copies = PyTuple_GET_ITEM(gathered, 2);
    PyObject *done = PyObject_CallFunctionObjArgs(settle, sources, copies, NULL);
    Py_XDECREF(done);
    Py_DECREF(gathered);
    return done == NULL ? -1 : 0;
}

/* The end of a stretch without Python code in which tensors were copied; an exception that is set stays, and then there is nothing to settle. */
static int
tensors_end(Run *run)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    int failed = 0;
    run->tensors = 0;
    if (run->graphs != NULL) {
        failed = set_graphs(run->graphs, Py_True);
        Py_CLEAR(run->graphs);
    }
    if (run->gathered != NULL && type == NULL && !failed) {
        failed = settle_gathered(run);
    }
    if (type != NULL) {
        PyErr_Restore(type, value, traceback);
    }
    return failed;
}

/* Whether no mode takes part in operations on tensors; then none makes a graph until Python code runs. */
static int
tensors_begin(Run *run, TensorCopier *this)
{
    if (run->tensors) {
        return 1;
    }
    long function = function_number(this->functions[FUNCTION_MODES]), dispatch = function_number(this->functions[DISPATCH_MODES]);
    if (PyErr_Occurred()) {
        return -1;
    }
    if (function != 0 || dispatch != 0) {
        return 0;
    }
    PyObject *enabled = PyObject_CallNoArgs(this->functions[IS_GRAD_ENABLED]);
    if (enabled == NULL) {
        return -1;
    }
    int failed = 0;
    if (enabled == Py_True && (failed = set_graphs(this->functions[SET_GRAD_ENABLED], Py_False)) == 0) {
        run->graphs = Py_NewRef(this->functions[SET_GRAD_ENABLED]);
    }
    Py_DECREF(enabled);
    run->tensors = !failed;
    return failed ? -1 : 1;
}

/* The attributes that somebody has set on a tensor, new reference; NULL without an exception where there are none. */
static PyObject *
tensor_attributes(PyObject *x)
{
#if PY_VERSION_HEX >= 0x030d0000
    if (PyType_HasFeature(Py_TYPE(x), Py_TPFLAGS_INLINE_VALUES)) {
        PyObject *made = PyObject_GenericGetDict(x, NULL);
        if (made != NULL && PyDict_GET_SIZE(made) == 0) {
            Py_CLEAR(made);
        }
        return made;
    }
#endif
    PyObject **found = _PyObject_GetDictPtr(x);
    if (found == NULL || *found == NULL || (PyDict_CheckExact(*found) && PyDict_GET_SIZE(*found) == 0)) {
        return NULL;
    }
    return Py_NewRef(*found);
}

/* Whether the getters say that a tensor is plain, if it has a storage; whatever they raise, the definition will see. The fewer of them the
 * better: each takes as long as ten of Python's own. */
static int
is_plain_tensor(TensorCopier *this, PyObject *x, int *requires_grad, int *gathered)
{
    PyObject *dtype = descriptor_get(this->getters[GET_DTYPE], x);
    if (dtype == NULL) {
        PyErr_Clear();
        return 0;
    }
    Py_DECREF(dtype); /* they live as long as torch */
    Py_ssize_t i = 0;
    while (i < this->dtype_count && this->dtypes[i] != dtype) {
        i++;
    }
    if (i == this->dtype_count || !getter_is(this->getters[GET_HOOKS], x, Py_None) ||
        !getter_is(this->getters[GET_AFTER_GRAD], x, Py_None) || !method_is(this->methods[CALL_IS_NEG], x, Py_False)) {
        return 0;
    }
    *requires_grad = getter_is(this->getters[GET_REQUIRES_GRAD], x, Py_True);
    if (*requires_grad && !getter_is(this->getters[GET_IS_LEAF], x, Py_True)) {
        return 0;
    }
    *gathered = 0;
    if (getter_is(this->getters[GET_IS_CPU], x, Py_True)) {
        *gathered = this->gathered_count > 0 && this->gathered[0] == this->getters[GET_IS_CPU];
        return 1;
    }
    for (i = 0; i < this->gathered_count && !*gathered; i++) {
        *gathered = getter_is(this->gathered[i], x, Py_True);
    }
    return *gathered;
}

/* The address of the storage if the tensor is as large as that, as a number; NULL without an exception where it is not. */
static PyObject *
key_of_whole_storage(TensorCopier *this, PyObject *x, PyObject *storage)
{
    if (storage == NULL) {
        PyErr_Clear(); /* a kind of tensor that has none */
        return NULL;
    }
    PyObject *key = NULL, *nbytes = descriptor_get(this->getters[GET_NBYTES], x), *all = method_call(this->storage_nbytes, storage);
    if (nbytes != NULL && all != NULL && PyLong_Check(nbytes) && PyLong_Check(all)) {
        Py_ssize_t size = PyLong_AsSsize_t(nbytes);
        if (size > 0 && size == PyLong_AsSsize_t(all)) {
            key = descriptor_get(this->storage_key, storage);
        }
    }
    PyErr_Clear();
    Py_XDECREF(nbytes);
    Py_XDECREF(all);
    return key;
}

/* The copies of storages: memo["torch"] once Python code sees the memo, before that a dictionary of the copied tensors on them. */
static PyObject *
stored_copies(Run *run)
{
    if (!run->exposed) {
        if (run->stored == NULL) {
            run->stored = PyDict_New();
        }
        return run->stored;
    }
    PyObject *found = PyDict_GetItemWithError(run->dict, name_torch);
    if (found == NULL && !PyErr_Occurred() && (found = PyDict_New()) != NULL) {
        int failed = PyDict_SetItem(run->dict, name_torch, found);
        Py_DECREF(found);
        return failed ? NULL : found;
    }
    return found;
}

static int
store_copy(Run *run, TensorCopier *this, PyObject *key, PyObject *y)
{
    PyObject *stored = stored_copies(run);
    if (stored == NULL) {
        return -1;
    }
    if (!run->exposed) {
        return PyDict_SetItem(stored, key, y);
    }
    PyObject *storage = method_call(this->methods[CALL_STORAGE], y);
    if (storage == NULL) {
        return -1;
    }
    int failed = PyDict_SetItem(stored, key, storage);
    Py_DECREF(storage);
    return failed;
}

/* Before torch lets go of the lock: as before Python code, if there are other threads that could run it. */
static int
others_may_run(Run *run)
{
    PyThreadState *threads = PyInterpreterState_ThreadHead(PyInterpreterState_Get());
    if (PyThreadState_Next(threads) == NULL) {
        return 0;
    }
    run->pythons++;
    return (run->logged && log_flush(run) < 0) || (run->pending != NULL && pending_enter(run) < 0) ? -1 : 0;
}

/* torch.empty_like(x) whose contents come later, or x.clone(). */
static PyObject *
clone_tensor(Run *run, TensorCopier *this, PyObject *x, int gathered)
{
    if (others_may_run(run) < 0) {
        return NULL;
    }
    return method_call(gathered ? this->functions[EMPTY_LIKE] : this->methods[CALL_CLONE], x);
}

/* Whether the copy lies in memory as the original does. */
static int
same_strides(TensorCopier *this, PyObject *x, PyObject *y)
{
    if (method_is(this->methods[CALL_IS_CONTIGUOUS], x, Py_True)) {
        return 1; /* cloning keeps that */
    }
    PyObject *before = method_call(this->methods[CALL_STRIDE], x), *after = method_call(this->methods[CALL_STRIDE], y);
    int same = before != NULL && after != NULL ? PyObject_RichCompareBool(before, after, Py_EQ) : 0;
    PyErr_Clear();
    Py_XDECREF(before);
    Py_XDECREF(after);
    return same == 1;
}

static int
gather(Run *run, TensorCopier *this, PyObject *x, PyObject *y)
{
    if (run->gathered == NULL) {
        run->gathered = PyTuple_Pack(3, this->settle, Py_None, Py_None);
        PyObject *sources = PyList_New(0), *copies = PyList_New(0);
        if (run->gathered == NULL || sources == NULL || copies == NULL) {
            Py_CLEAR(run->gathered);
            Py_XDECREF(sources);
            Py_XDECREF(copies);
            return -1;
        }
        PyTuple_SetItem(run->gathered, 1, sources);
        PyTuple_SetItem(run->gathered, 2, copies);
    }
    return PyList_Append(PyTuple_GET_ITEM(run->gathered, 1), x) < 0 || PyList_Append(PyTuple_GET_ITEM(run->gathered, 2), y) < 0 ? -1 : 0;
}

/* The gradient and the attributes, which may lead back to the tensor. */
static int
copy_what_hangs(Run *run, TensorCopier *this, PyObject *x, PyObject *y, PyObject *grad, PyObject *attributes)
{
    if (attributes != NULL) {
        PyObject *dict = PyObject_GenericGetDict(y, NULL);
        int failed = dict == NULL || copy_items(run, attributes, dict) < 0;
        Py_XDECREF(dict);
        if (failed) {
            return -1;
        }
    }
    if (grad == Py_None) {
        return 0;
    }
    PyObject *copied = copy_object(run, grad);
    if (copied == NULL) {
        return -1;
    }
    PyGetSetDef *def = ((PyGetSetDescrObject *)this->getters[GET_GRAD])->d_getset;
    int failed = def->set(y, copied, def->closure);
    Py_DECREF(copied);
    return failed;
}

/* The copy of a plain tensor; NotImplemented for all others. x is owned by the caller. */
static PyObject *
copy_plain_tensor(Run *run, TensorCopier *this, PyObject *x)
{
    PyTypeObject *type = Py_TYPE(x);
    int requires_grad, gathered, modes;
    if ((type != this->tensor && type != this->parameter) || !is_plain_tensor(this, x, &requires_grad, &gathered)) {
        Py_RETURN_NOTIMPLEMENTED;
    }
    modes = tensors_begin(run, this);
    if (modes <= 0) {
        return modes < 0 ? NULL : Py_NewRef(Py_NotImplemented);
    }
    PyObject *attributes = tensor_attributes(x), *grad = NULL, *key = NULL, *storage, *stored, *y = NULL;
    if (attributes == NULL ? PyErr_Occurred() != NULL
                           : (!PyDict_CheckExact(attributes) || PyDict_Contains(attributes, name_unguarded) != 0)) {
        PyErr_Clear();
        goto decline;
    }
    grad = descriptor_get(this->getters[GET_GRAD], x);
    if (grad == NULL) {
        PyErr_Clear();
        goto decline;
    }
    storage = method_call(this->methods[CALL_STORAGE], x);
    key = key_of_whole_storage(this, x, storage);
    Py_XDECREF(storage);
    stored = key == NULL ? NULL : stored_copies(run);
    if (stored == NULL || !PyDict_Check(stored) || PyDict_Contains(stored, key) != 0) {
        if (PyErr_Occurred()) {
            goto failed;
        }
        goto decline;
    }
    y = clone_tensor(run, this, x, gathered);
    if (y == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_Exception)) {
            goto failed;
        }
        PyErr_Clear(); /* the definition will see, and say which rule it was */
        goto decline;
    }
    if (Py_TYPE(y) != this->tensor || !same_strides(this, x, y)) {
        goto decline;
    }
    if (gathered && gather(run, this, x, y) < 0) {
        goto failed;
    }
    if (type == this->parameter && PyObject_SetAttr(y, name_class, (PyObject *)type) < 0) {
        goto failed;
    }
    if (requires_grad) {
        PyGetSetDef *def = ((PyGetSetDescrObject *)this->getters[GET_REQUIRES_GRAD])->d_getset;
        if (def->set(y, Py_True, def->closure) < 0) {
            goto failed;
        }
    }
    if (store_copy(run, this, key, y) < 0) {
        goto failed;
    }
    if (grad != Py_None || attributes != NULL) {
        if (memo_set(run, x, y, 0) < 0 || copy_what_hangs(run, this, x, y, grad, attributes) < 0) {
            goto failed;
        }
    }
    goto done;
decline:
    Py_XDECREF(y);
    y = Py_NewRef(Py_NotImplemented);
    goto done;
failed:
    Py_CLEAR(y);
done:
    Py_XDECREF(attributes);
    Py_XDECREF(grad);
    Py_XDECREF(key);
    return y;
}

/* memo["torch"], once Python code sees the memo. */
static int
stored_expose(Run *run)
{
    if (run->stored == NULL) {
        return 0;
    }
    PyObject *stored = run->stored, *key, *tensor, *exposed = PyDict_New();
    Py_ssize_t position = 0;
    run->stored = NULL;
    int failed = exposed == NULL;
    while (!failed && PyDict_Next(stored, &position, &key, &tensor)) {
        PyObject *storage = PyObject_CallMethod(tensor, method_names[CALL_STORAGE], NULL);
        failed = storage == NULL || PyDict_SetItem(exposed, key, storage) < 0;
        Py_XDECREF(storage);
    }
    failed = failed || PyDict_SetItem(run->dict, name_torch, exposed) < 0;
    Py_XDECREF(exposed);
    Py_DECREF(stored);
    return failed ? -1 : 0;
}

/* ---- the object that Python registers ------------------------------------------------------------------------------------------------ */

static PyObject *
tensor_copier_call(PyObject *self, PyObject *const *args, size_t flags, PyObject *names)
{
    return PyObject_Vectorcall(((TensorCopier *)self)->copy, args, flags, names);
}

static int
tensor_copier_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(((TensorCopier *)self)->kept);
    return 0;
}

static int
tensor_copier_clear(PyObject *self)
{
    return 0; /* what it borrows from `kept` must be there as long as it is itself; it is in no cycle that torch is not in */
}

static void
tensor_copier_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    Py_XDECREF(((TensorCopier *)self)->kept);
    PyObject_GC_Del(self);
}

static PyTypeObject TensorCopierType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "safepickle._native._core.TensorCopier",
    .tp_basicsize = sizeof(TensorCopier),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_vectorcall_offset = offsetof(TensorCopier, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_dealloc = tensor_copier_dealloc,
    .tp_traverse = tensor_copier_traverse,
    .tp_clear = tensor_copier_clear,
    .tp_doc = "The copy function of a rule for tensors, which the core need not call for plain ones.",
};

/* ---- tensors in pickles -------------------------------------------------------------------------------------------------------------- */

/* The reducer of the rule for tensors: `reduce` is the definition, which is asked about all that is not plain. */
struct TensorReducer {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *reduce;   /* (tensor, pickler) -> reduce value: the definition */
    PyObject *bytes_of; /* (storage, pickler) -> its bytes, as a buffer perhaps */
    PyObject *make;     /* what a pickle calls */
    TensorCopier *torch;
};

/* What the dump remembers: (owners, up to which size bytes are written as bytes). NULL without an exception where the definition must see. */
static PyObject *
quick_of(PyObject *pickler)
{
    PyObject *by_value = PyObject_GetAttr(pickler, name_by_value), *quick = NULL;
    if (by_value != NULL) {
        quick = PyObject_GetAttr(by_value, name_torch_quick);
        Py_DECREF(by_value);
    }
    if (quick == NULL) {
        PyErr_Clear();
    }
    else if (!PyTuple_CheckExact(quick) || PyTuple_GET_SIZE(quick) != 2 || !PyDict_CheckExact(PyTuple_GET_ITEM(quick, 0))) {
        Py_CLEAR(quick);
    }
    return quick;
}

static PyObject *
bytes_of_tensor(TensorReducer *this, PyObject *x, PyObject *storage, PyObject *pickler, PyObject *limit)
{
    PyObject *size = descriptor_get(this->torch->getters[GET_NBYTES], x);
    if (size == NULL) {
        return NULL;
    }
    Py_ssize_t nbytes = PyLong_AsSsize_t(size), most = PyLong_AsSsize_t(limit);
    Py_DECREF(size);
    if (PyErr_Occurred()) {
        return NULL;
    }
    if (nbytes > most) {
        return PyObject_CallFunctionObjArgs(this->bytes_of, storage, pickler, NULL);
    }
    PyObject *address = method_call(this->torch->methods[CALL_DATA_PTR], x);
    void *data = address == NULL ? NULL : PyLong_AsVoidPtr(address);
    Py_XDECREF(address);
    if (data == NULL) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_RuntimeError, "a tensor without memory");
        }
        return NULL;
    }
    return PyBytes_FromStringAndSize(data, nbytes);
}

/* (make, (class, bytes, dtype, size[, True])) */
static PyObject *
reduced_tensor(TensorReducer *this, PyObject *x, PyObject *data, int requires_grad)
{
    PyObject *dtype = descriptor_get(this->torch->getters[GET_DTYPE], x), *size = method_call(this->torch->methods[CALL_SIZE], x);
    PyObject *arguments = PyTuple_New(requires_grad ? 5 : 4), *exact = NULL;
    if (size != NULL && PyTuple_Check(size)) {
        exact = PyTuple_New(PyTuple_GET_SIZE(size));
        for (Py_ssize_t i = 0; exact != NULL && i < PyTuple_GET_SIZE(size); i++) {
            PyTuple_SET_ITEM(exact, i, Py_NewRef(PyTuple_GET_ITEM(size, i)));
        }
    }
    Py_XDECREF(size);
    if (dtype == NULL || exact == NULL || arguments == NULL) {
        Py_XDECREF(dtype);
        Py_XDECREF(exact);
        Py_XDECREF(arguments);
        return NULL;
    }
    PyTuple_SET_ITEM(arguments, 0, Py_NewRef(Py_TYPE(x)));
    PyTuple_SET_ITEM(arguments, 1, Py_NewRef(data));
    PyTuple_SET_ITEM(arguments, 2, dtype);
    PyTuple_SET_ITEM(arguments, 3, exact);
    if (requires_grad) {
        PyTuple_SET_ITEM(arguments, 4, Py_NewRef(Py_True));
    }
    PyObject *reduced = PyTuple_Pack(2, this->make, arguments);
    Py_DECREF(arguments);
    return reduced;
}

/* The reduce value of a plain tensor on the CPU whose storage was not written before; NULL without an exception for all others. */
static PyObject *
reduce_plain_tensor(TensorReducer *this, PyObject *x, PyObject *pickler)
{
    TensorCopier *torch = this->torch;
    int requires_grad, gathered;
    if (Py_TYPE(x) != torch->tensor && Py_TYPE(x) != torch->parameter) {
        return NULL;
    }
    PyObject *quick = quick_of(pickler), *reduced = NULL, *storage = NULL, *key = NULL, *data = NULL;
    if (quick == NULL) {
        return NULL;
    }
    PyObject *owners = PyTuple_GET_ITEM(quick, 0), *attributes = NULL;
    if (!getter_is(torch->getters[GET_IS_CPU], x, Py_True) || !getter_is(torch->getters[GET_IS_NESTED], x, Py_False) ||
        !is_plain_tensor(torch, x, &requires_grad, &gathered) ||
        !getter_is(torch->getters[GET_GRAD], x, Py_None) || (attributes = tensor_attributes(x)) != NULL ||
        !method_is(torch->methods[CALL_IS_CONTIGUOUS], x, Py_True)) {
        goto done;
    }
    storage = method_call(torch->methods[CALL_STORAGE], x);
    key = key_of_whole_storage(torch, x, storage);
    if (key == NULL || PyDict_Contains(owners, key) != 0) {
        goto done;
    }
    data = bytes_of_tensor(this, x, storage, pickler, PyTuple_GET_ITEM(quick, 1));
    if (data != NULL) {
        PyObject *owner = PyTuple_Pack(2, x, storage);
        if (owner != NULL && PyDict_SetItem(owners, key, owner) == 0) {
            reduced = reduced_tensor(this, x, data, requires_grad);
        }
        Py_XDECREF(owner);
    }
done:
    Py_XDECREF(attributes);
    Py_XDECREF(storage);
    Py_XDECREF(key);
    Py_XDECREF(data);
    Py_DECREF(quick);
    return reduced;
}

static PyObject *
tensor_reducer_call(PyObject *self, PyObject *const *args, size_t flags, PyObject *names)
{
    TensorReducer *this = (TensorReducer *)self;
    if (names == NULL && PyVectorcall_NARGS(flags) == 2 && args[1] != Py_None) {
        PyObject *reduced = reduce_plain_tensor(this, args[0], args[1]);
        if (reduced != NULL || PyErr_Occurred()) {
            return reduced;
        }
    }
    return PyObject_Vectorcall(this->reduce, args, flags, names);
}

static int
tensor_reducer_traverse(PyObject *self, visitproc visit, void *arg)
{
    TensorReducer *this = (TensorReducer *)self;
    Py_VISIT(this->reduce);
    Py_VISIT(this->bytes_of);
    Py_VISIT(this->make);
    Py_VISIT(this->torch);
    return 0;
}

static void
tensor_reducer_dealloc(PyObject *self)
{
    TensorReducer *this = (TensorReducer *)self;
    PyObject_GC_UnTrack(self);
    Py_XDECREF(this->reduce);
    Py_XDECREF(this->bytes_of);
    Py_XDECREF(this->make);
    Py_XDECREF(this->torch);
    PyObject_GC_Del(self);
}

static PyTypeObject TensorReducerType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "safepickle._native._core.TensorReducer",
    .tp_basicsize = sizeof(TensorReducer),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_vectorcall_offset = offsetof(TensorReducer, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_dealloc = tensor_reducer_dealloc,
    .tp_traverse = tensor_reducer_traverse,
    .tp_doc = "The reducer of a rule for tensors.",
};

PyDoc_STRVAR(tensor_reducer_doc,
"tensor_reducer(reduce, bytes_of, make, copier)\n--\n\n"
"A reducer for tensors. reduce(tensor, pickler) is asked about those that are not plain, bytes_of(storage, pickler) for bytes that are\n"
"not small; make is what a pickle calls; copier is what tensor_copier returned.");

static PyObject *
core_tensor_reducer(PyObject *module, PyObject *args)
{
    PyObject *reduce, *bytes_of, *make, *torch;
    if (!PyArg_ParseTuple(args, "OOOO!", &reduce, &bytes_of, &make, &TensorCopierType, &torch)) {
        return NULL;
    }
    TensorReducer *made = PyObject_GC_New(TensorReducer, &TensorReducerType);
    if (made == NULL) {
        return NULL;
    }
    made->vectorcall = tensor_reducer_call;
    made->reduce = Py_NewRef(reduce);
    made->bytes_of = Py_NewRef(bytes_of);
    made->make = Py_NewRef(make);
    made->torch = (TensorCopier *)Py_NewRef(torch);
    PyObject_GC_Track((PyObject *)made);
    return (PyObject *)made;
}

PyDoc_STRVAR(fill_memory_doc,
"fill_memory(address, size, data)\n--\n\n"
"Copy all of a buffer to an address if it is of that size; False if it is not.");

static PyObject *
core_fill_memory(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    if (count != 3) {
        PyErr_SetString(PyExc_TypeError, "fill_memory takes three arguments");
        return NULL;
    }
    void *address = PyLong_AsVoidPtr(args[0]);
    Py_ssize_t size = PyLong_AsSsize_t(args[1]);
    Py_buffer buffer;
    if (PyErr_Occurred() || PyObject_GetBuffer(args[2], &buffer, PyBUF_SIMPLE) < 0) {
        return NULL;
    }
    int fits = buffer.len == size && (size == 0 || address != NULL);
    if (fits && size > 0) {
        memcpy(address, buffer.buf, size);
    }
    PyBuffer_Release(&buffer);
    return PyBool_FromLong(fits);
}

/* ---- reading torch ------------------------------------------------------------------------------------------------------------------- */

/* Look a name up and keep what it is; NULL with TypeError where that is not of the type wanted. */
static PyObject *
part(TensorCopier *this, PyObject *owner, const char *name, PyTypeObject *wanted)
{
    PyObject *found = PyObject_GetAttrString(owner, name);
    if (found == NULL) {
        return NULL;
    }
    int failed = PyList_Append(this->kept, found);
    Py_DECREF(found);
    if (failed) {
        return NULL;
    }
    if (wanted != NULL && Py_TYPE(found) != wanted) {
        PyErr_Format(PyExc_TypeError, "%s is a %s, not a %s", name, Py_TYPE(found)->tp_name, wanted->tp_name);
        return NULL;
    }
    return found;
}

static int
read_torch(TensorCopier *this, PyObject *torch, PyObject *dtypes, PyObject *gathered)
{
    PyObject *tensor = part(this, torch, "Tensor", NULL), *nn = part(this, torch, "nn", NULL), *inner = part(this, torch, "_C", NULL);
    PyObject *storage = part(this, torch, "UntypedStorage", NULL);
    PyObject *parameter = nn == NULL ? NULL : part(this, nn, "Parameter", NULL);
    if (tensor == NULL || inner == NULL || storage == NULL || parameter == NULL) {
        return -1;
    }
    if (!PyType_Check(tensor) || !PyType_Check(parameter)) {
        PyErr_SetString(PyExc_TypeError, "Tensor and Parameter must be classes");
        return -1;
    }
    this->tensor = (PyTypeObject *)tensor;
    this->parameter = (PyTypeObject *)parameter;
    for (int i = 0; i < GETTERS; i++) {
        if ((this->getters[i] = part(this, tensor, getter_names[i], &PyGetSetDescr_Type)) == NULL) {
            return -1;
        }
    }
    for (int i = 0; i < METHODS; i++) {
        if ((this->methods[i] = part(this, tensor, method_names[i], &PyMethodDescr_Type)) == NULL) {
            return -1;
        }
    }
    for (int i = 0; i < FUNCTIONS; i++) {
        PyObject *owner = function_names[i][0] == '_' ? inner : torch;
        if ((this->functions[i] = part(this, owner, function_names[i], &PyCFunction_Type)) == NULL) {
            return -1;
        }
    }
    this->storage_key = part(this, storage, "_cdata", &PyGetSetDescr_Type);
    this->storage_nbytes = part(this, storage, "nbytes", &PyMethodDescr_Type);
    if (this->storage_key == NULL || this->storage_nbytes == NULL) {
        return -1;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(dtypes) && i < MOST_DTYPES; i++) {
        this->dtypes[this->dtype_count++] = PyTuple_GET_ITEM(dtypes, i);
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(gathered) && i < MOST_GATHERED; i++) {
        const char *name = PyUnicode_AsUTF8(PyTuple_GET_ITEM(gathered, i));
        PyObject *getter = name == NULL ? NULL : part(this, tensor, name, &PyGetSetDescr_Type);
        if (getter == NULL) {
            return -1;
        }
        this->gathered[this->gathered_count++] = getter;
    }
    return 0;
}

PyDoc_STRVAR(tensor_copier_doc,
"tensor_copier(copy, settle, torch, dtypes, gathered)\n--\n\n"
"A copy function for tensors. copy(tensor, memo) is asked about those that are not plain; settle(sources, copies) brings the contents\n"
"of those on devices whose getters are named in `gathered`, such as 'is_cuda'. Raises TypeError or AttributeError where this torch is\n"
"not as it must be.");

static PyObject *
core_tensor_copier(PyObject *module, PyObject *args)
{
    PyObject *copy, *settle, *torch, *dtypes, *gathered;
    if (!PyArg_ParseTuple(args, "OOOO!O!", &copy, &settle, &torch, &PyTuple_Type, &dtypes, &PyTuple_Type, &gathered)) {
        return NULL;
    }
    TensorCopier *made = PyObject_GC_New(TensorCopier, &TensorCopierType);
    if (made == NULL) {
        return NULL;
    }
    memset((char *)made + sizeof(PyObject), 0, sizeof(TensorCopier) - sizeof(PyObject));
    made->vectorcall = tensor_copier_call;
    made->copy = copy;
    made->settle = settle;
    made->kept = PyList_New(0);
    PyObject_GC_Track((PyObject *)made);
    if (made->kept == NULL || PyList_Append(made->kept, copy) < 0 || PyList_Append(made->kept, settle) < 0 ||
        PyList_Append(made->kept, dtypes) < 0 || read_torch(made, torch, dtypes, gathered) < 0) {
        Py_DECREF(made);
        return NULL;
    }
    return (PyObject *)made;
}
