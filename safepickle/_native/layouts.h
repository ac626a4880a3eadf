/* Where do CPython 3.11 to 3.13 keep the attributes of an instance that has no dictionary yet, and the values of a dictionary?
 *
 * Reading them there leaves the original as it is: asking for its dictionary makes one, which it then keeps. Each version has its own
 * layout, none is promised, so they are tried on an object when the module is imported (layouts_are_known), and where anything is not as
 * it is written here, in other versions, or with SAFEPICKLE_PORTABLE=1 in the environment, the core keeps to what every version has.
 */

#if PY_VERSION_HEX >= 0x030b0000 && PY_VERSION_HEX < 0x030e0000 && SIZEOF_VOID_P == 8 && !defined(Py_GIL_DISABLED) && !defined(SAFEPICKLE_PORTABLE)
#define HAVE_LAYOUTS 1
#else
#define HAVE_LAYOUTS 0
#endif

#if HAVE_LAYOUTS

typedef struct {
    Py_ssize_t refcnt;
    uint8_t log2_size;
    uint8_t log2_index_bytes;
    uint8_t kind; /* 0: entries with hashes */
    uint32_t version;
    Py_ssize_t usable;
    Py_ssize_t nentries;
    char indices[];
} Keys;

typedef struct { PyObject *key, *value; } UnicodeEntry;
typedef struct { Py_hash_t hash; PyObject *key, *value; } HashedEntry;

static int layouts_known; /* set once they were tried */

static inline void *
keys_entries(Keys *keys)
{
    return keys->indices + ((size_t)1 << keys->log2_index_bytes);
}

/* The attributes of an instance that has no dictionary. */
typedef struct {
    PyObject **values; /* by the index of their names in the keys that all instances of the type share */
    uint8_t *size;
    uint8_t *order;    /* the indices, as the attributes were set: in this direction */
    int direction;
} Inline;

#define MOST_INLINE 30

static inline Keys *
inline_keys(PyTypeObject *type)
{
    return (Keys *)((PyHeapTypeObject *)type)->ht_cached_keys;
}

static inline void
inline_at(void *where, Inline *found)
{
#if PY_VERSION_HEX >= 0x030d0000
    struct { uint8_t capacity, size, embedded, valid; PyObject *values[1]; } *head = where;
    found->values = head->values;
    found->size = &head->size;
    found->order = (uint8_t *)&head->values[head->capacity];
    found->direction = 1;
#else
    found->values = where;
    found->size = (uint8_t *)where - 2;
    found->order = found->size - 1;
    found->direction = -1;
#endif
}

/* The dictionary that an instance has, or the values that it has in place of one; neither for types that keep attributes in another way. */
static inline void
inline_or_dict(PyObject *x, PyTypeObject *type, void **values, PyObject **dict)
{
    *values = NULL;
    *dict = NULL;
#if PY_VERSION_HEX >= 0x030d0000
    if (type->tp_flags & Py_TPFLAGS_INLINE_VALUES) {
        uint8_t *head = (uint8_t *)x + sizeof(PyObject);
        *dict = ((PyObject **)x)[-3];
        *values = *dict == NULL && head[3] ? head : NULL;
    }
#elif PY_VERSION_HEX >= 0x030c0000
    if (type->tp_flags & Py_TPFLAGS_MANAGED_DICT) {
        uintptr_t tagged = ((uintptr_t *)x)[-3];
        *(tagged & 1 ? values : (void **)dict) = (void *)(tagged + (tagged & 1));
    }
#else
    if (type->tp_flags & Py_TPFLAGS_MANAGED_DICT) {
        *values = ((void **)x)[-4];
        *dict = ((PyObject **)x)[-3];
    }
#endif
}

/* Find the attributes of an instance that has no dictionary. */
static inline int
inline_find(PyObject *x, PyTypeObject *type, Inline *found)
{
    void *values;
    PyObject *dict;
    inline_or_dict(x, type, &values, &dict);
    if (values == NULL || inline_keys(type) == NULL) {
        return 0;
    }
    inline_at(values, found);
    return 1;
}

/* The same; or of one that has a dictionary which nobody else holds, with the keys that all instances share: it looks alike. */
static inline int
inline_read(PyObject *x, PyTypeObject *type, Inline *found)
{
    void *values;
    PyObject *dict;
    inline_or_dict(x, type, &values, &dict);
    Keys *keys = inline_keys(type);
    if (values == NULL && dict != NULL && PyDict_CheckExact(dict) && Py_REFCNT(dict) == 1 && (Keys *)((PyDictObject *)dict)->ma_keys == keys) {
        values = ((PyDictObject *)dict)->ma_values;
    }
    if (values == NULL || keys == NULL) {
        return 0;
    }
    inline_at(values, found);
    return 1;
}

static inline PyObject *
inline_name(Keys *keys, int index)
{
    return ((UnicodeEntry *)keys_entries(keys))[index].key;
}

/* Add an attribute that the instance does not have. Takes over the reference. */
static inline void
inline_add(Inline *to, int index, PyObject *value)
{
    to->order[to->direction * *to->size] = (uint8_t)index;
    ++*to->size;
    to->values[index] = value;
}

/* Where the value of the entry is; NULL where the dictionary is not of the simple form: no gap, values beside their keys. */
static inline PyObject **
dict_value(PyObject *dict, Py_ssize_t at)
{
    Keys *keys = (Keys *)((PyDictObject *)dict)->ma_keys;
    return keys->kind == 0 ? &((HashedEntry *)keys_entries(keys))[at].value : &((UnicodeEntry *)keys_entries(keys))[at].value;
}

static inline int
dict_is_simple(PyObject *dict)
{
    PyDictObject *x = (PyDictObject *)dict;
    return layouts_known && x->ma_values == NULL && ((Keys *)x->ma_keys)->nentries == x->ma_used;
}

static int
same_attributes(PyObject *x, const char *const *names, int count)
{
    Inline found;
    if (!inline_find(x, Py_TYPE(x), &found) || *found.size != count) {
        return 0;
    }
    Keys *keys = inline_keys(Py_TYPE(x));
    for (int i = 0; i < count; i++) {
        int index = found.order[found.direction * i];
        if (index >= keys->nentries || !PyUnicode_CheckExact(inline_name(keys, index)) ||
            PyUnicode_CompareWithASCIIString(inline_name(keys, index), names[i]) != 0 ||
            !PyLong_CheckExact(found.values[index]) || PyLong_AsLong(found.values[index]) != names[i][0] * 1000) {
            return 0;
        }
    }
    return 1;
}

static int
set_number(PyObject *x, const char *name)
{
    PyObject *number = PyLong_FromLong(name[0] * 1000);
    int failed = number == NULL || PyObject_SetAttrString(x, name, number) < 0;
    Py_XDECREF(number);
    return failed;
}

/* Try all of the above on a class made for it. */
static void
layouts_try(PyObject *empty)
{
    static const char *const names[] = {"c", "a", "d"};
    PyObject *cls = PyObject_CallFunction((PyObject *)&PyType_Type, "s(){}", "Tried");
    PyObject *x = cls == NULL ? NULL : PyObject_CallNoArgs(cls), *y = NULL, *dict = NULL;
    PyTypeObject *type = (PyTypeObject *)cls;
    if (x == NULL || set_number(x, "b") || set_number(x, "c") || set_number(x, "a") || PyObject_DelAttrString(x, "b") < 0 ||
        set_number(x, "d") || !same_attributes(x, names, 3)) {
        goto done;
    }
    y = PyBaseObject_Type.tp_new(type, empty, NULL);
    Inline from, to;
    if (y == NULL || !inline_find(x, type, &from) || !inline_find(y, type, &to) || *to.size != 0) {
        goto done;
    }
    for (int i = 0; i < 3; i++) {
        int index = from.order[from.direction * i];
        inline_add(&to, index, Py_NewRef(from.values[index]));
    }
    if (!same_attributes(y, names, 3)) {
        goto done;
    }
    dict = PyObject_GenericGetDict(y, NULL);
    if (dict == NULL || inline_find(y, type, &to) || inline_read(y, type, &to) || PyDict_GET_SIZE(dict) != 3) {
        goto done;
    }
    Py_CLEAR(dict);
    if (!inline_read(y, type, &to) || *to.size != 3 || to.values[to.order[0]] != from.values[from.order[0]]) {
        goto done;
    }
    dict = PyObject_GenericGetDict(y, NULL);
    Py_ssize_t position = 0;
    PyObject *name, *value;
    for (int i = 0; i < 3; i++) {
        if (!PyDict_Next(dict, &position, &name, &value) || PyUnicode_CompareWithASCIIString(name, names[i]) != 0 ||
            PyLong_AsLong(value) != names[i][0] * 1000) {
            goto done;
        }
    }
    Py_SETREF(dict, PyDict_New());
    if (dict == NULL || PyDict_SetItemString(dict, "a", x) < 0 || PyDict_SetItem(dict, empty, cls) < 0) {
        goto done;
    }
    layouts_known = 1;
    layouts_known = dict_is_simple(dict) && *dict_value(dict, 0) == x && *dict_value(dict, 1) == cls;
    if (layouts_known) {
        Py_SETREF(dict, PyDict_New());
        layouts_known = dict != NULL && PyDict_SetItemString(dict, "a", x) == 0 && PyDict_SetItemString(dict, "b", cls) == 0 &&
                        dict_is_simple(dict) && *dict_value(dict, 1) == cls;
    }
done:
    PyErr_Clear();
    Py_XDECREF(dict);
    Py_XDECREF(x);
    Py_XDECREF(y);
    Py_XDECREF(cls);
}

#else

static inline int
dict_is_simple(PyObject *dict)
{
    return 0;
}

#endif
