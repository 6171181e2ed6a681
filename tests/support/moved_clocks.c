/* Moves the clocks of a process: LD_PRELOAD with the name of a file in MOVED_CLOCKS_FILE, whose text is the number of
 * seconds to add to CLOCK_REALTIME and the number to add to CLOCK_MONOTONIC. A wait until a time of the moved
 * monotonic clock ends at that time less the second number, because the kernel's clock does not move. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <semaphore.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static time_t seconds(clockid_t clock) {
    char text[64], *second;
    const char *path = getenv("MOVED_CLOCKS_FILE");
    if (clock != CLOCK_REALTIME && clock != CLOCK_MONOTONIC) return 0;
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    ssize_t length = file < 0 ? 0 : read(file, text, sizeof text - 1);
    if (file >= 0) close(file);
    text[length > 0 ? length : 0] = 0;
    time_t wall = strtoll(text, &second, 10);
    return clock == CLOCK_REALTIME ? wall : strtoll(second, 0, 10);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = REAL(clock_gettime);
    int result = real(clock, now);
    if (!result) now->tv_sec += seconds(clock);
    return result;
}

int sem_clockwait(sem_t *semaphore, clockid_t clock, const struct timespec *until) {
    static int (*real)(sem_t *, clockid_t, const struct timespec *);
    if (!real) real = REAL(sem_clockwait);
    struct timespec kernel = {until->tv_sec - seconds(clock), until->tv_nsec};
    return real(semaphore, clock, &kernel);
}

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *time, struct timespec *left) {
    static int (*real)(clockid_t, int, const struct timespec *, struct timespec *);
    if (!real) real = REAL(clock_nanosleep);
    struct timespec kernel = {time->tv_sec - (flags & TIMER_ABSTIME ? seconds(clock) : 0), time->tv_nsec};
    return real(clock, flags, &kernel, left);
}
