/* A table of plans by the address of their types, which keeps no type alive: a plan holds while the type has its version.
 *
 * To be defined before: Plan, with `type` and `version`; PlanTable, with `plans`, `mask`, `used` and `generation`; plan_clear(Plan *);
 * and generation_now(), of the rules, which is never 0.
 */

static void
plans_clear(PlanTable *table)
{
    PlanTable old = *table; /* the last reference to a rule may be ours, and Python code run as it goes */
    memset(table, 0, sizeof(PlanTable)); /* the generation is 0 then, which never is the current one */
    for (size_t i = 0; old.plans != NULL && i <= old.mask; i++) {
        plan_clear(&old.plans[i]);
    }
    PyMem_Free(old.plans);
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
    for (size_t i = 0; table->plans != NULL && i <= table->mask; i++) {
        if (table->plans[i].type == NULL) {
            continue;
        }
        size_t at = pointer_hash(table->plans[i].type) & (size - 1);
        while (bigger[at].type != NULL) {
            at = (at + 1) & (size - 1);
        }
        bigger[at] = table->plans[i];
    }
    PyMem_Free(table->plans);
    table->plans = bigger;
    table->mask = size - 1;
    return 0;
}

#define MOST_PLANS 4096 /* a program that makes classes without an end must not fill the table with those that are gone */

/* The table takes over what is in `fresh`. */
static int
plan_keep(PlanTable *table, Plan *fresh)
{
    uint64_t generation = generation_now();
    if (table->generation != generation || table->used >= MOST_PLANS) {
        plans_clear(table);
        table->generation = generation;
    }
    if ((table->plans == NULL || table->used * 3 >= table->mask * 2) && plans_grow(table) < 0) {
        return -1;
    }
    size_t at = pointer_hash(fresh->type) & table->mask;
    while (table->plans[at].type != NULL && table->plans[at].type != fresh->type) {
        at = (at + 1) & table->mask;
    }
    Plan old = table->plans[at];
    table->used += old.type == NULL;
    table->plans[at] = *fresh;
    memset(fresh, 0, sizeof *fresh);
    plan_clear(&old);
    return 0;
}

/* A plan that was kept and is still right; NULL without an exception where there is none. */
static inline Plan *
plan_find(PlanTable *table, PyTypeObject *type)
{
    if (table->plans == NULL || table->generation != generation_now()) {
        return NULL;
    }
    size_t at = pointer_hash(type) & table->mask;
    while (table->plans[at].type != NULL) {
        Plan *plan = &table->plans[at];
        if (plan->type == type) {
            unsigned int version = type_version(type);
            return version != 0 && plan->version == version ? plan : NULL;
        }
        at = (at + 1) & table->mask;
    }
    return NULL;
}
