/* Stands in for libcuda.so.1: holds nothing, and fails on demand with the code in CUDA_STUB_FAILS=name:code. */
#include <stdlib.h>
#include <string.h>

static int code_of(const char *name)
{
    const char *fails = getenv("CUDA_STUB_FAILS");
    size_t length = strlen(name);
    if (fails && !strncmp(fails, name, length) && fails[length] == ':')
        return atoi(fails + length + 1);
    return 0;
}

int cuInit(unsigned flags) { (void)flags; return code_of("cuInit"); }
int cuDeviceGet(int *device, int index) { *device = index; return code_of("cuDeviceGet"); }
int cuDevicePrimaryCtxRetain(void **context, int device)
{
    *context = context;
    (void)device;
    return code_of("cuDevicePrimaryCtxRetain");
}
int cuCtxSetCurrent(void *context) { return context ? code_of("cuCtxSetCurrent") : 1; }
int cuMemAlloc_v2(unsigned long long *address, size_t bytes)
{
    *address = 1;
    return bytes == 16 << 20 && getenv("CUDA_VISIBLE_DEVICES") ? code_of("cuMemAlloc_v2") : 1;
}
