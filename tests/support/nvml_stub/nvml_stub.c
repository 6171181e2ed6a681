/* A stand-in for NVIDIA's libnvidia-ml.so.1: answers from a text file, named by NVML_STUB_FILE, that is read
 * again whenever it changes. Lines, each with its words separated by single spaces:
 *
 *   driver VERSION
 *   gpu INDEX UUID TOTAL RESERVED USED MODEL...
 *   mig INDEX UUID TOTAL RESERVED USED             in order of their places
 *   process INDEX MIG|- LIST PID BYTES|- GI CI     LIST: 0 compute, 1 graphics, 2 MPS; "-" bytes: not known
 *   fail CALL|* WHERE CODE                         WHERE: "-" every device, and with "*" every call there is;
 *                                                  INDEX a GPU and its MIG devices; INDEX/- the GPU alone;
 *                                                  INDEX/PLACE one of its MIG devices
 *                                                  CODE -1: the call blocks until the line is gone
 *   race INDEX|- TIMES                             so often, lists outgrow the size that was asked for
 *   sample INDEX PID TIME PERCENT                  a utilisation sample that the driver keeps; TIME in microseconds,
 *                                                  or 0 for the time of the call
 *   samples INDEX REPEATS RACES EMPTY              REPEATS 1: samples of before the time asked for are returned, too;
 *                                                  RACES: so often, samples outgrow the size that was asked for;
 *                                                  EMPTY: the code if there are none, 6 NOT_FOUND (the default),
 *                                                  0 SUCCESS or 3 NOT_SUPPORTED
 *   sensor INDEX CALL VALUE                        the result of nvmlDeviceGetUtilizationRates, …Temperature, …PowerUsage
 *                                                  or …EnforcedPowerLimit; without the line it is not supported
 *   xid INDEX NUMBER CODE                          an error for the event sets of the GPU; each NUMBER is delivered
 *                                                  once after nvmlInit, the smallest first
 *   lie CALL INDEX|- NUMBER CODE                   the call does its work, and then returns CODE and this number: a count
 *                                                  of GPUs, processes, samples or MIG devices, or the MIG mode
 *   backend INDEX misc|dmem                        the GPU can limit cgroups; without the line it answers 3
 *   group PATH misc|dmem                           a cgroup that exists for the driver, with or without files of dmem
 *   limit INDEX SOFT HARD USED PATH                the limit of a cgroup, until the line is gone
 *   hang                                           every call blocks until the line is gone
 *   delay INDEX MILLISECONDS|-                     each call on a GPU and its MIG devices takes so long, "-" for ever;
 *                                                  the call goes on when the line is gone
 *   serial                                         a call that blocks holds the lock of all calls
 *   sticky                                         the count of GPUs stays what it was at nvmlInit
 *
 * Like NVIDIA's library it may be called from several threads: calls wait for each other, except while they block.
 *
 * Layouts and codes are those of NVIDIA's nvml.h. Built with -DWITHOUT_V3 it lacks the newest process lists,
 * with -DWITHOUT_MEMORY_V2 the newest memory call, with -DWITHOUT_LIMITS those for memory limits, as older drivers
 * do (those limits came with r615).
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9, TIMEOUT = 10, IN_USE = 19, VERSION_MISMATCH = 25,
    SENSORS = 4, XIDS = 256, EVENT_SETS = 128,
    GPUS = 64, MIGS = 8, FAILURES = 256, LISTS = 3, EVERY = -1, THE_GPU = -2, FOR_EVER = -1, STEP_MS = 10
};
#define UNKNOWN_BYTES 0xFFFFFFFFFFFFFFFFull

typedef unsigned long long bytes_t;
typedef struct { unsigned pid; bytes_t used; unsigned gpu_instance, compute_instance; } process_t;
typedef struct { bytes_t total, free, used; } memory_t;
typedef struct { unsigned version; bytes_t total, reserved, free, used; } memory_v2_t;
typedef struct { process_t *items; unsigned count, room; } list_t;
typedef struct { unsigned pid; bytes_t time; unsigned sm, memory, encoder, decoder; } sample_t;
typedef struct { bytes_t time; unsigned pid, sm, memory, encoder, decoder, jpeg, flow; } sample_info_t;
typedef struct { unsigned version, count; bytes_t since; sample_info_t *items; } samples_info_t;
typedef struct { unsigned version; int kind, celsius; } temperature_t;
typedef struct { unsigned gpu, memory; } rates_t;
typedef struct device device_t;
typedef struct { device_t *device; bytes_t type, data; unsigned gpu_instance, compute_instance; } event_t;
typedef struct { int is_made; char has[64]; } event_set_t;
struct device {
    char uuid[96], model[96];
    bytes_t total, reserved, used;
    list_t lists[LISTS];
    int index, place, mig_count, is_mig, races;
    sample_t *samples;
    unsigned sample_count, sample_repeats;
    int sample_races, sample_empty;
    struct device *migs;
    unsigned sensors[SENSORS];
    int has_sensor[SENSORS], xid_count;
};

static device_t gpus[GPUS];
static device_t migs[GPUS][MIGS];
static int gpu_count;
enum { OFF, MISC, DMEM, GROUPS = 512 };
static struct { int index, has_files; bytes_t soft, hard, used; char path[400]; } limits[GROUPS];
static int limit_count, backends[GPUS];
static struct { char call[80]; int index, place, code; } failures[FAILURES];
static struct { char call[80]; int index, code; unsigned number; } lies[FAILURES];
static int lie_count, delays_ms[GPUS];
static event_set_t event_sets[EVENT_SETS];
static int newest_xid[GPUS];
static struct { int number; unsigned code; } xids[GPUS][XIDS]; /* not in device_t, which is cleared: memory is measured */
static const char *const sensor_calls[SENSORS] = {"nvmlDeviceGetUtilizationRates", "nvmlDeviceGetTemperature",
                                                  "nvmlDeviceGetPowerUsage", "nvmlDeviceGetEnforcedPowerLimit"};
static int failure_count, hangs, is_there, is_sticky, is_serial, count_at_start, references;
static char version[80];
static struct stat seen;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int take_lock(void) { return pthread_mutex_lock(&lock); }
static void leave_lock(int *taken) { (void)taken, pthread_mutex_unlock(&lock); }

/* Holds the lock until the end of the function. */
#define LOCKED __attribute__((cleanup(leave_lock), unused)) int taken = take_lock()

static void forget(void) {
    for (int i = 0; i < GPUS; i++)
        for (int m = -1; m < MIGS; m++) {
            device_t *device = m < 0 ? &gpus[i] : &migs[i][m];
            for (int l = 0; l < LISTS; l++) free(device->lists[l].items);
            free(device->samples);
            memset(device, 0, sizeof *device);
            device->sample_empty = NOT_FOUND;
        }
    memset(delays_ms, 0, sizeof delays_ms);
    memset(backends, 0, sizeof backends);
    limit_count = 0;
    gpu_count = failure_count = lie_count = hangs = is_there = is_sticky = is_serial = 0;
    strcpy(version, "580.65.06");
}

static int number_or_every(const char *word) { return strcmp(word, "-") ? atoi(word) : EVERY; }

static void add_process(device_t *device, int which, process_t process) {
    list_t *list = &device->lists[which];
    if (list->count == list->room) {
        list->room = list->room * 2 + 16;
        list->items = realloc(list->items, list->room * sizeof *list->items);
    }
    list->items[list->count++] = process;
}

static void add_sample(device_t *device, sample_t sample) {
    device->samples = realloc(device->samples, (device->sample_count + 1) * sizeof sample);
    device->samples[device->sample_count++] = sample;
}

static void read_line(const char *line) {
    char uuid[96], model[96] = "", word[80], amount[32];
    bytes_t total, reserved, used;
    int index, which, code, empty;
    process_t process;
    sample_t sample = {0};
    if (sscanf(line, "driver %79s", version) == 1) return;
    if (sscanf(line, "gpu %d %95s %llu %llu %llu %95[^\n]", &index, uuid, &total, &reserved, &used, model) >= 5) {
        device_t *gpu = &gpus[index];
        strcpy(gpu->uuid, uuid);
        strcpy(gpu->model, model);
        gpu->total = total, gpu->reserved = reserved, gpu->used = used;
        gpu->index = index, gpu->place = THE_GPU, gpu->migs = migs[index];
        if (index >= gpu_count) gpu_count = index + 1;
    } else if (sscanf(line, "mig %d %95s %llu %llu %llu", &index, uuid, &total, &reserved, &used) == 5) {
        device_t *mig = &migs[index][gpus[index].mig_count++];
        strcpy(mig->uuid, uuid);
        mig->total = total, mig->reserved = reserved, mig->used = used;
        mig->index = index, mig->place = gpus[index].mig_count - 1, mig->is_mig = 1;
    } else if (sscanf(line, "process %d %79s %d %u %31s %u %u", &index, word, &which, &process.pid, amount,
                      &process.gpu_instance, &process.compute_instance) == 7) {
        int mig = number_or_every(word);
        process.used = strcmp(amount, "-") ? strtoull(amount, NULL, 10) : UNKNOWN_BYTES;
        add_process(mig == EVERY ? &gpus[index] : &migs[index][mig], which, process);
    } else if (sscanf(line, "fail %79s %31s %d", word, amount, &code) == 3 && failure_count < FAILURES) {
        strcpy(failures[failure_count].call, word);
        char *place = strchr(amount, '/');
        if (place) *place++ = 0;
        failures[failure_count].index = number_or_every(amount);
        failures[failure_count].place = !place ? EVERY : strcmp(place, "-") ? atoi(place) : THE_GPU;
        failures[failure_count++].code = code;
    } else if (sscanf(line, "lie %79s %31s %u %d", word, amount, &process.pid, &code) == 4 && lie_count < FAILURES) {
        strcpy(lies[lie_count].call, word);
        lies[lie_count].index = number_or_every(amount);
        lies[lie_count].number = process.pid;
        lies[lie_count++].code = code;
    } else if (sscanf(line, "race %79s %d", word, &code) == 2) {
        for (int i = 0; i < GPUS; i++)
            if (number_or_every(word) == EVERY || number_or_every(word) == i) gpus[i].races = code;
    } else if (sscanf(line, "sample %d %u %llu %u", &index, &sample.pid, &sample.time, &sample.sm) == 4) {
        add_sample(&gpus[index], sample);
    } else if (sscanf(line, "samples %d %d %d %d", &index, &which, &code, &empty) == 4) {
        gpus[index].sample_repeats = which, gpus[index].sample_races = code, gpus[index].sample_empty = empty;
    } else if (sscanf(line, "sensor %d %79s %u", &index, word, &process.pid) == 3) {
        for (int i = 0; i < SENSORS; i++)
            if (!strcmp(word, sensor_calls[i]))
                gpus[index].sensors[i] = process.pid, gpus[index].has_sensor[i] = 1;
    } else if (sscanf(line, "xid %d %d %u", &index, &code, &process.pid) == 3 && gpus[index].xid_count < XIDS) {
        xids[index][gpus[index].xid_count].number = code;
        xids[index][gpus[index].xid_count++].code = process.pid;
    } else if (sscanf(line, "backend %d %79s", &index, word) == 2) {
        backends[index] = strcmp(word, "dmem") ? MISC : DMEM;
    } else if (limit_count < GROUPS && sscanf(line, "group %399s %79s", limits[limit_count].path, word) == 2) {
        limits[limit_count].index = EVERY, limits[limit_count++].has_files = !strcmp(word, "dmem");
    } else if (limit_count < GROUPS && sscanf(line, "limit %d %llu %llu %llu %399s", &index, &total, &reserved, &used,
                                              limits[limit_count].path) == 5) {
        limits[limit_count].index = index, limits[limit_count].soft = total;
        limits[limit_count].hard = reserved, limits[limit_count++].used = used;
    } else if (sscanf(line, "delay %d %79s", &index, word) == 2) {
        delays_ms[index] = strcmp(word, "-") ? atoi(word) : FOR_EVER;
    } else if (strncmp(line, "serial", 6) == 0) {
        is_serial = 1;
    } else if (strncmp(line, "hang", 4) == 0) {
        hangs = 1;
    } else if (strncmp(line, "sticky", 6) == 0) {
        is_sticky = 1;
    }
}

static void refresh(void) {
    const char *path = getenv("NVML_STUB_FILE");
    struct stat now;
    if (!path || stat(path, &now) != 0) {
        forget();
        memset(&seen, 0, sizeof seen);
        return;
    }
    if (now.st_ino == seen.st_ino && now.st_size == seen.st_size && now.st_dev == seen.st_dev &&
        now.st_mtim.tv_sec == seen.st_mtim.tv_sec && now.st_mtim.tv_nsec == seen.st_mtim.tv_nsec)
        return;
    FILE *file = fopen(path, "r");
    if (!file) return;
    char line[600];
    forget();
    seen = now;
    is_there = 1;
    while (fgets(line, sizeof line, file)) read_line(line);
    fclose(file);
}

static int is_of(const char *pattern, const char *call) {
    size_t length = strlen(pattern);
    if (strcmp(pattern, "*") == 0 || strcmp(pattern, call) == 0) return 1;
    return strncmp(pattern, call, length) == 0 && call[length] == '_' && call[length + 1] == 'v' &&
           call[length + 2] && !call[length + 3];
}

static int is_blocked(int index, int waited_ms) {
    int delay = index >= 0 && index < GPUS ? delays_ms[index] : 0;
    return hangs || delay == FOR_EVER || waited_ms < delay;
}

static void block(void) {
    int keeps = is_serial;
    if (!keeps) pthread_mutex_unlock(&lock);
    usleep(STEP_MS * 1000);
    if (!keeps) pthread_mutex_lock(&lock);
}

static int failure_of(const char *call, int index, int place) {
    for (int i = 0; i < failure_count; i++)
        if (is_of(failures[i].call, call) && (failures[i].index == EVERY || failures[i].index == index) &&
            (failures[i].place == EVERY || failures[i].place == place))
            return failures[i].code;
    return SUCCESS;
}

/* What a call that returns a number does last. */
static int leave(const char *call, int index, int code, unsigned *number) {
    for (int i = 0; i < lie_count; i++)
        if (is_of(lies[i].call, call) && (lies[i].index == EVERY || lies[i].index == index)) {
            *number = lies[i].number;
            return lies[i].code;
        }
    return code;
}

/* What every call does first. */
static int enter_at(const char *call, int index, int place) {
    int code;
    refresh();
    for (int waited_ms = 0; (code = failure_of(call, index, place)) == FOR_EVER || is_blocked(index, waited_ms);
         waited_ms += STEP_MS) {
        block();
        refresh();
    }
    if (code) return code;
    if (!is_there) return DRIVER_NOT_LOADED;
    return references ? SUCCESS : UNINITIALIZED;
}

static int enter(const char *call, int index) { return enter_at(call, index, THE_GPU); }

static int enter_device(const char *call, device_t *device) {
    if (!device) return INVALID_ARGUMENT;
    refresh();
    if (!device->uuid[0]) return enter(call, -2) ? enter(call, -2) : INVALID_ARGUMENT;
    return enter_at(call, device->index, device->place);
}

#define ENTER(index) LOCKED; int entered = enter(__func__, index); if (entered) return entered
#define ENTER_DEVICE(device) LOCKED; int entered = enter_device(__func__, device); if (entered) return entered

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    LOCKED;
    int code = enter("nvmlInit", -2);
    if (code && code != UNINITIALIZED) return code;
    if (!references++) count_at_start = gpu_count;
    return SUCCESS;
}
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

int nvmlShutdown(void) {
    LOCKED;
    if (!references) return UNINITIALIZED;
    if (!--references) memset(newest_xid, 0, sizeof newest_xid);
    for (int i = 0; i < EVENT_SETS; i++)
        if (event_sets[i].is_made) {
            memset(event_sets, 0, sizeof event_sets);
            return IN_USE; /* NVIDIA's library returns success; a test sees that the sets were not freed */
        }
    return SUCCESS;
}

const char *nvmlErrorString(int code) {
    static char text[32];
    snprintf(text, sizeof text, "stub error %d", code);
    return text;
}

static int copy(char *to, unsigned room, const char *text) {
    if (strlen(text) + 1 > room) return INSUFFICIENT_SIZE;
    strcpy(to, text);
    return SUCCESS;
}

int nvmlSystemGetDriverVersion(char *to, unsigned room) {
    ENTER(-2);
    return copy(to, room, version);
}

int nvmlSystemGetNVMLVersion(char *to, unsigned room) {
    ENTER(-2);
    return copy(to, room, version);
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    ENTER(-2);
    *count = is_sticky ? count_at_start : gpu_count;
    return leave(__func__, -2, SUCCESS, count);
}

static int handle_at(unsigned index, device_t **device) {
    if (index >= (unsigned)(is_sticky ? count_at_start : gpu_count)) return INVALID_ARGUMENT;
    *device = &gpus[index];
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, device_t **device) {
    ENTER((int)index);
    return handle_at(index, device);
}

int nvmlDeviceGetHandleByUUID(const char *uuid, device_t **device) {
    ENTER(-2);
    for (int i = 0; i < gpu_count; i++)
        if (strcmp(gpus[i].uuid, uuid) == 0) return handle_at(i, device);
    return NOT_FOUND;
}

int nvmlDeviceGetIndex(device_t *device, unsigned *index) {
    ENTER_DEVICE(device);
    *index = device->index;
    return SUCCESS;
}

int nvmlDeviceGetUUID(device_t *device, char *to, unsigned room) {
    ENTER_DEVICE(device);
    return copy(to, room, device->uuid);
}

int nvmlDeviceGetName(device_t *device, char *to, unsigned room) {
    ENTER_DEVICE(device);
    return copy(to, room, device->model);
}

int nvmlDeviceGetMemoryInfo(device_t *device, memory_t *memory) {
    ENTER_DEVICE(device);
    memory->total = device->total;
    memory->used = device->used + device->reserved; /* the first version counts what is reserved as used */
    memory->free = device->total - memory->used;
    return SUCCESS;
}

#ifndef WITHOUT_MEMORY_V2
int nvmlDeviceGetMemoryInfo_v2(device_t *device, memory_v2_t *memory) {
    ENTER_DEVICE(device);
    if (memory->version != (sizeof(memory_v2_t) | 2u << 24)) return VERSION_MISMATCH;
    memory->total = device->total;
    memory->reserved = device->reserved;
    memory->used = device->used;
    memory->free = device->total - device->reserved - device->used;
    return SUCCESS;
}
#endif

static int fill(device_t *device, int which, unsigned *count, process_t *to) {
    list_t *list = &device->lists[which];
    unsigned room = *count, needed = list->count;
    int *races = &gpus[device->index].races;
    if (to && *races) {
        if (*races > 0) --*races;
        *count = needed = room + 1;
        return INSUFFICIENT_SIZE;
    }
    if (!to && *races && !needed) needed = 1;
    *count = needed;
    if (!needed) return SUCCESS;
    if (!to || room < needed) return INSUFFICIENT_SIZE;
    memcpy(to, list->items, needed * sizeof *to);
    return SUCCESS;
}

#define PROCESS_LIST(name, which) \
    int name(device_t *device, unsigned *count, process_t *to) { \
        ENTER_DEVICE(device); \
        int code = fill(device, which, count, to); \
        return leave(__func__, device->index, code, count); \
    }
PROCESS_LIST(nvmlDeviceGetComputeRunningProcesses_v2, 0)
PROCESS_LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, 1)
PROCESS_LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2, 2)
#ifndef WITHOUT_V3
PROCESS_LIST(nvmlDeviceGetComputeRunningProcesses_v3, 0)
PROCESS_LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, 1)
PROCESS_LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, 2)
#endif

/* The samples after a time. A size query has no room, and is answered with the number of samples. */
static int samples_since(device_t *device, bytes_t since, unsigned *count, int has_room, sample_t **from) {
    unsigned room = *count, needed = 0;
    if (gpus[device->index].mig_count) return NOT_SUPPORTED;
    static sample_t newer[65536];
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    for (unsigned i = 0; i < device->sample_count && needed < 65536; i++) {
        newer[needed] = device->samples[i];
        if (!newer[needed].time) newer[needed].time = now.tv_sec * 1000000ull + now.tv_nsec / 1000;
        if (newer[needed].time > since || device->sample_repeats) needed++;
    }
    *count = needed;
    *from = newer;
    if (!needed) return device->sample_empty;
    if (!has_room) return INSUFFICIENT_SIZE;
    if (device->sample_races) {
        if (device->sample_races > 0) device->sample_races--;
        *count = room + 1;
        return INSUFFICIENT_SIZE;
    }
    return room < needed ? INSUFFICIENT_SIZE : SUCCESS;
}

int nvmlDeviceGetProcessUtilization(device_t *device, sample_t *to, unsigned *count, bytes_t since) {
    ENTER_DEVICE(device);
    sample_t *from;
    int code = samples_since(device, since, count, to != NULL, &from);
    if (!code && to) memcpy(to, from, *count * sizeof *to);
    return leave(__func__, device->index, code, count);
}

int nvmlDeviceGetProcessesUtilizationInfo(device_t *device, samples_info_t *info) {
    ENTER_DEVICE(device);
    if (info->version != (sizeof(samples_info_t) | 1u << 24)) return VERSION_MISMATCH;
    sample_t *from;
    int code = samples_since(device, info->since, &info->count, info->items != NULL, &from);
    if (!code && info->items)
        for (unsigned i = 0; i < info->count; i++)
            info->items[i] = (sample_info_t){.time = from[i].time, .pid = from[i].pid, .sm = from[i].sm};
    return leave(__func__, device->index, code, &info->count);
}

static int sensor(device_t *device, int which, unsigned *value) {
    if (device->is_mig || !device->has_sensor[which]) return NOT_SUPPORTED;
    *value = device->sensors[which];
    return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(device_t *device, rates_t *rates) {
    ENTER_DEVICE(device);
    rates->memory = 0;
    return sensor(device, 0, &rates->gpu);
}

int nvmlDeviceGetTemperature(device_t *device, int kind, unsigned *celsius) {
    (void)kind;
    ENTER_DEVICE(device);
    return sensor(device, 1, celsius);
}

#ifndef WITHOUT_TEMPERATURE_V
int nvmlDeviceGetTemperatureV(device_t *device, temperature_t *temperature) {
    ENTER_DEVICE(device);
    if (temperature->version != (sizeof(temperature_t) | 1u << 24)) return VERSION_MISMATCH;
    return sensor(device, 1, (unsigned *)&temperature->celsius);
}
#endif

int nvmlDeviceGetPowerUsage(device_t *device, unsigned *milliwatts) {
    ENTER_DEVICE(device);
    return sensor(device, 2, milliwatts);
}

int nvmlDeviceGetEnforcedPowerLimit(device_t *device, unsigned *milliwatts) {
    ENTER_DEVICE(device);
    return sensor(device, 3, milliwatts);
}

int nvmlEventSetCreate(event_set_t **set) {
    ENTER(-2);
    for (int i = 0; i < EVENT_SETS; i++)
        if (!event_sets[i].is_made) {
            event_sets[i].is_made = 1;
            *set = &event_sets[i];
            return SUCCESS;
        }
    return INSUFFICIENT_SIZE;
}

int nvmlDeviceRegisterEvents(device_t *device, bytes_t types, event_set_t *set) {
    ENTER_DEVICE(device);
    if (!set->is_made || types != 8) return INVALID_ARGUMENT;
    set->has[device->index] = 1;
    return SUCCESS;
}

/* The GPU of a set whose line names the call; else none: waiting for events does not reach a GPU, so that neither
 * "fail *" nor "delay" of a GPU counts. */
static int index_of(const event_set_t *set, const char *call) {
    for (int i = 0; i < failure_count; i++)
        if (strcmp(failures[i].call, "*") && is_of(failures[i].call, call) && failures[i].index >= 0 &&
            set->has[failures[i].index])
            return failures[i].index;
    return -2;
}

int nvmlEventSetWait_v2(event_set_t *set, event_t *event, unsigned timeout_ms) {
    LOCKED;
    refresh();
    int entered = enter(__func__, index_of(set, __func__));
    if (entered) return entered;
    if (!set->is_made || timeout_ms) return INVALID_ARGUMENT; /* the agent must not wait */
    for (int i = 0; i < GPUS; i++)
        for (int n = 0; set->has[i] && n < gpus[i].xid_count; n++)
            if (xids[i][n].number > newest_xid[i]) {
                newest_xid[i] = xids[i][n].number;
                *event = (event_t){.device = &gpus[i], .type = 8, .data = xids[i][n].code};
                return SUCCESS;
            }
    return TIMEOUT;
}

int nvmlEventSetFree(event_set_t *set) {
    ENTER(-2);
    if (!set->is_made) return INVALID_ARGUMENT;
    memset(set, 0, sizeof *set);
    return SUCCESS;
}

int nvmlDeviceGetMigMode(device_t *device, unsigned *current, unsigned *pending) {
    ENTER_DEVICE(device);
    *current = *pending = device->mig_count > 0;
    return leave(__func__, device->index, device->mig_count ? SUCCESS : NOT_SUPPORTED, current);
}

int nvmlDeviceGetMaxMigDeviceCount(device_t *device, unsigned *count) {
    ENTER_DEVICE(device);
    *count = MIGS - 1;
    return leave(__func__, device->index, SUCCESS, count);
}

int nvmlDeviceGetMigDeviceHandleByIndex(device_t *device, unsigned place, device_t **mig) {
    ENTER_DEVICE(device);
    if (place >= (unsigned)device->mig_count) return NOT_FOUND;
    int code = enter_at(__func__, device->index, (int)place);
    if (code) return code;
    *mig = &device->migs[place];
    return SUCCESS;
}

int nvmlDeviceIsMigDeviceHandle(device_t *device, unsigned *is_mig) {
    ENTER_DEVICE(device);
    *is_mig = device->is_mig;
    return SUCCESS;
}

int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device_t *mig, device_t **device) {
    ENTER_DEVICE(mig);
    *device = &gpus[mig->index];
    return SUCCESS;
}

#ifndef WITHOUT_LIMITS
typedef struct { const char *path; bytes_t soft, hard, used; } get_limits_t;
typedef struct { const char *path; bytes_t soft, hard; } set_limits_t;

static int find(const char *path, size_t length, int index) {
    for (int i = 0; i < limit_count; i++)
        if (limits[i].index == index && strlen(limits[i].path) == length && !strncmp(limits[i].path, path, length)) return i;
    return -1;
}

/* misc: the nearest limited cgroup at or above this one, else NOT_SUPPORTED (memacct.c). dmem: the cgroup's own files,
 * in which "max" is 2^64-1; without files NOT_FOUND. A MIG device is an invalid argument. */
int nvmlDeviceGetMemoryLimits_v1(device_t *device, get_limits_t *asked) {
    ENTER_DEVICE(device);
    if (device->is_mig || !asked->path || asked->path[0] != '/') return INVALID_ARGUMENT;
    int backend = backends[device->index], found = -1;
    size_t length = strlen(asked->path);
    if (backend == OFF) return NOT_SUPPORTED;
    int group = find(asked->path, length, EVERY);
    if (group < 0 || (backend == DMEM && !limits[group].has_files)) return NOT_FOUND;
    for (; length > 0; length--)
        if (asked->path[length] == 0 || asked->path[length] == '/') {
            if ((found = find(asked->path, length, device->index)) >= 0 || backend == DMEM) break;
        }
    if (found < 0 && backend == MISC) return NOT_SUPPORTED;
    asked->soft = found < 0 ? 0 : limits[found].soft;
    asked->hard = found < 0 ? UNKNOWN_BYTES : limits[found].hard;
    asked->used = found < 0 ? 0 : limits[found].used;
    return SUCCESS;
}

/* Only root may set a limit, on no root cgroup. The agent must never call it. */
int nvmlDeviceSetMemoryLimits_v1(device_t *device, const set_limits_t *asked) {
    ENTER_DEVICE(device);
    if (device->is_mig || !asked->path) return INVALID_ARGUMENT;
    return backends[device->index] == OFF ? NOT_SUPPORTED : NO_PERMISSION;
}
#endif
