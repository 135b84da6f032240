/* A file system that refuses: preloaded, it makes calls on files below a folder fail.

   FILE_FAULTS_BELOW   the folder
   FILE_FAULTS         flock, fsync_folder or rename, with the number of an error: "flock=37 rename=5".
                       "rename=5@3": the third rename alone; "rename=-3@2": the process is killed
                       with SIGKILL before its second rename; "rename=-4@2": after it. A process
                       may change the variable: then calls are counted from one again. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define BEFORE -3
#define AFTER -4

static int below(const char *path) {
    const char *root = getenv("FILE_FAULTS_BELOW");
    return root != NULL && strncmp(path, root, strlen(root)) == 0;
}

static int descriptor_below(int descriptor) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size < 0)
        return 0;
    path[size] = 0;
    return below(path);
}

static int name_below(int descriptor, const char *name) {
    return name[0] == '/' ? below(name) : descriptor_below(descriptor);
}

enum { FLOCK, FSYNC_FOLDER, RENAME, CALLS };
static const char *const NAMES[] = {"flock", "fsync_folder", "rename"};
static int counts[CALLS];

/* The fault of this call, or 0. */
static int fault(int call) {
    static char before[256];
    const char *all = getenv("FILE_FAULTS");
    char wanted[64];
    if (all != NULL && strncmp(all, before, sizeof before - 1)) {
        strncpy(before, all, sizeof before - 1);
        memset(counts, 0, sizeof counts);
    }
    snprintf(wanted, sizeof wanted, "%s=", NAMES[call]);
    const char *found = all == NULL ? NULL : strstr(all, wanted);
    if (found == NULL)
        return 0;
    char *rest;
    int number = strtol(found + strlen(wanted), &rest, 10);
    ++counts[call];
    return *rest == '@' && strtol(rest + 1, NULL, 10) != counts[call] ? 0 : number;
}

static int refuse(int number) {
    if (number == BEFORE)
        kill(getpid(), SIGKILL);
    errno = number;
    return -1;
}

int flock(int descriptor, int operation) {
    static int (*real)(int, int);
    if (real == NULL)
        real = dlsym(RTLD_NEXT, "flock");
    int number = descriptor_below(descriptor) ? fault(FLOCK) : 0;
    return number ? refuse(number) : real(descriptor, operation);
}

int fsync(int descriptor) {
    static int (*real)(int);
    struct stat status;
    if (real == NULL)
        real = dlsym(RTLD_NEXT, "fsync");
    int folder = fstat(descriptor, &status) == 0 && S_ISDIR(status.st_mode);
    int number = folder && descriptor_below(descriptor) ? fault(FSYNC_FOLDER) : 0;
    return number ? refuse(number) : real(descriptor);
}

int renameat(int from, const char *old, int to, const char *new) {
    static int (*real)(int, const char *, int, const char *);
    if (real == NULL)
        real = dlsym(RTLD_NEXT, "renameat");
    int number = name_below(to, new) ? fault(RENAME) : 0;
    if (number && number != AFTER)
        return refuse(number);
    int result = real(from, old, to, new);
    if (number == AFTER)
        kill(getpid(), SIGKILL);
    return result;
}

int rename(const char *old, const char *new) {
    static int (*real)(const char *, const char *);
    if (real == NULL)
        real = dlsym(RTLD_NEXT, "rename");
    int number = below(new) ? fault(RENAME) : 0;
    if (number && number != AFTER)
        return refuse(number);
    int result = real(old, new);
    if (number == AFTER)
        kill(getpid(), SIGKILL);
    return result;
}
