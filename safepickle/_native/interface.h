/* Which set of calls between the Python modules and a compiled one this source is for. A change of a name, an argument or the meaning
 * of either side's call makes a new number, here and in safepickle/_native/__init__.py: a module that was built from older sources is
 * refused when it is imported, and Python serves in its place.
 */

#define SAFEPICKLE_CORE_INTERFACE 5
#define SAFEPICKLE_PICKLING_INTERFACE 3
