/* Records what a process writes to data.mdb and when it makes it durable.
 *
 * Preload it (LD_PRELOAD) and name a file in R3L_TRACE. Each call appends, once it has returned,
 *
 *     kind u8, seconds f64 (CLOCK_MONOTONIC), offset u64, length u64, data [length]
 *
 * kind W: a write; D: a write that is durable when it returns (O_DSYNC); S: fsync or fdatasync.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static FILE *trace;

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static int watched(int fd) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 9) return 0;
    path[length] = 0;
    return strcmp(path + length - 9, "/data.mdb") == 0;
}

static void record(char kind, uint64_t offset, uint64_t length, const void *data) {
    struct timespec now;
    pthread_mutex_lock(&lock);
    if (!trace && getenv("R3L_TRACE")) trace = fopen(getenv("R3L_TRACE"), "ab");
    if (trace) {
        clock_gettime(CLOCK_MONOTONIC, &now);
        double seconds = now.tv_sec + now.tv_nsec * 1e-9;
        fwrite(&kind, 1, 1, trace);
        fwrite(&seconds, 8, 1, trace);
        fwrite(&offset, 8, 1, trace);
        fwrite(&length, 8, 1, trace);
        if (length) fwrite(data, 1, length, trace);
        fflush(trace);
    }
    pthread_mutex_unlock(&lock);
}

static void record_write(int fd, uint64_t offset, uint64_t length, const void *data) {
    record(fcntl(fd, F_GETFL) & O_DSYNC ? 'D' : 'W', offset, length, data);
}

ssize_t pwrite(int fd, const void *data, size_t length, off_t offset) {
    ssize_t done = REAL(pwrite)(fd, data, length, offset);
    if (done > 0 && watched(fd)) record_write(fd, offset, done, data);
    return done;
}

ssize_t pwrite64(int fd, const void *data, size_t length, off_t offset) {
    return pwrite(fd, data, length, offset);
}

ssize_t write(int fd, const void *data, size_t length) {
    if (!watched(fd)) return REAL(write)(fd, data, length);
    off_t offset = lseek(fd, 0, SEEK_CUR);
    ssize_t done = REAL(write)(fd, data, length);
    if (done > 0) record_write(fd, offset, done, data);
    return done;
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
    if (!watched(fd)) return REAL(writev)(fd, parts, count);
    off_t offset = lseek(fd, 0, SEEK_CUR);
    ssize_t done = REAL(writev)(fd, parts, count), left = done;
    for (int i = 0; i < count && left > 0; i++) {
        size_t length = (size_t)left < parts[i].iov_len ? (size_t)left : parts[i].iov_len;
        record_write(fd, offset, length, parts[i].iov_base);
        offset += length;
        left -= length;
    }
    return done;
}

int fdatasync(int fd) {
    int failed = REAL(fdatasync)(fd);
    if (!failed && watched(fd)) record('S', 0, 0, NULL);
    return failed;
}

int fsync(int fd) {
    int failed = REAL(fsync)(fd);
    if (!failed && watched(fd)) record('S', 0, 0, NULL);
    return failed;
}

/* Ways of writing that are not recorded: a store that used them would make the record a lie. */
int msync(void *address, size_t length, int flags) { abort(); }
