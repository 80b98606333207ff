/* Fail, or kill the process, at one chosen call of the C library on files below one folder.
 *
 * Loaded with LD_PRELOAD. Python, Arrow and delta-rs all reach the disk through these functions, so nothing that they do there is missed.
 * failing_calls_arm() starts to count. Each counted call writes its name and path as a line to a file descriptor.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { NOTHING, FAIL_BEFORE, FAIL_AFTER, KILL };
#define FDS 65536

static char below[4096], paths[FDS][256];
static atomic_int armed, counted;
static int chosen, what, error_number, report_to = -1;

void failing_calls_arm(const char *folder, int at, int mode, int number, int report) {
    strncpy(below, folder, sizeof below - 1);
    chosen = at, what = mode, error_number = number, report_to = report, counted = 0;
    armed = 1;
}

void failing_calls_disarm(void) { armed = 0; }

/* A file of the test's own, such as what stands for Spark's checkpoint, begins with "_driver". */
static int is_below(const char *path) {
    return armed && path && !strncmp(path, below, strlen(below)) && !strstr(path, "/_driver");
}
static const char *of_fd(int fd) { return armed && fd >= 0 && fd < FDS && paths[fd][0] ? paths[fd] : NULL; }

/* Return what is to happen at this call: NOTHING, FAIL_BEFORE or FAIL_AFTER. */
static int counts(const char *name, const char *path) {
    int before = errno, at = counted++;
    char line[600];
    int size = snprintf(line, sizeof line, "%s %s\n", name, path);
    if (report_to >= 0 && syscall(SYS_write, report_to, line, size) < 0) report_to = -1;
    errno = before;
    if (at != chosen) return NOTHING;
    if (what == KILL) kill(getpid(), SIGKILL);
    return what;
}

static void *real(const char *name) { return dlsym(RTLD_NEXT, name); }

/* One call: `where` is its path, or NULL if it is of no interest. */
#define CALL(name, where, failed, invocation)                                  \
    const char *at_ = (where);                                                 \
    int fate_ = at_ ? counts(#name, at_) : NOTHING;                            \
    if (fate_ == FAIL_BEFORE) { errno = error_number; return failed; }         \
    typeof(invocation) result_ = invocation;                                   \
    if (fate_ == FAIL_AFTER) { errno = error_number; return failed; }          \
    return result_;

#define REAL(name) ({ static typeof(&name) found_; if (!found_) found_ = real(#name); found_; })
#define IF(condition, path) ((condition) ? (path) : NULL)

static const char *at(int folder, const char *path, char *buffer) {
    if (!armed || !path) return NULL;
    if (path[0] == '/') return IF(is_below(path), path);
    const char *base = of_fd(folder);
    if (!base) return NULL;
    snprintf(buffer, 4096, "%s/%s", base, path);
    return buffer;
}

static int opened(int fd, const char *path) {
    if (fd >= 0 && fd < FDS) {
        paths[fd][0] = 0;
        if (path) strncpy(paths[fd], path, sizeof paths[fd] - 1);
    }
    return fd;
}

/* An open that fails after its work closes what it opened: only its effect, a new file, is left. */
#define OPEN(name, where, ...)                                                 \
    va_list rest; va_start(rest, flags);                                       \
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;    \
    va_end(rest);                                                              \
    const char *at_ = (where);                                                 \
    int fate_ = at_ ? counts(#name, at_) : NOTHING;                            \
    if (fate_ == FAIL_BEFORE) { errno = error_number; return -1; }             \
    int fd = REAL(name)(__VA_ARGS__, flags, mode);                             \
    if (fate_ == FAIL_AFTER) { syscall(SYS_close, fd); errno = error_number; return -1; } \
    return opened(fd, at_);

int open(const char *path, int flags, ...) { OPEN(open, IF(is_below(path), path), path) }
int open64(const char *path, int flags, ...) { OPEN(open64, IF(is_below(path), path), path) }
int openat(int folder, const char *path, int flags, ...) { char b[4096]; OPEN(openat, at(folder, path, b), folder, path) }
int openat64(int folder, const char *path, int flags, ...) { char b[4096]; OPEN(openat64, at(folder, path, b), folder, path) }

int close(int fd) {
    const char *path = of_fd(fd);
    int fate = path ? counts("close", path) : NOTHING;
    opened(fd, NULL);
    int result = REAL(close)(fd);
    if (fate != NOTHING) { errno = error_number; return -1; } /* as NFS does: the descriptor is closed, the data may be lost */
    return result;
}

int dup(int fd) { return opened(REAL(dup)(fd), of_fd(fd)); }
int dup2(int fd, int to) { return opened(REAL(dup2)(fd, to), of_fd(fd)); }
int dup3(int fd, int to, int flags) { return opened(REAL(dup3)(fd, to, flags), of_fd(fd)); }

ssize_t read(int fd, void *to, size_t n) { CALL(read, of_fd(fd), -1, REAL(read)(fd, to, n)) }
ssize_t pread(int fd, void *to, size_t n, off_t o) { CALL(pread, of_fd(fd), -1, REAL(pread)(fd, to, n, o)) }
ssize_t pread64(int fd, void *to, size_t n, off64_t o) { CALL(pread64, of_fd(fd), -1, REAL(pread64)(fd, to, n, o)) }
ssize_t readv(int fd, const struct iovec *v, int n) { CALL(readv, of_fd(fd), -1, REAL(readv)(fd, v, n)) }
ssize_t write(int fd, const void *from, size_t n) { CALL(write, of_fd(fd), -1, REAL(write)(fd, from, n)) }
ssize_t writev(int fd, const struct iovec *v, int n) { CALL(writev, of_fd(fd), -1, REAL(writev)(fd, v, n)) }
ssize_t pwrite(int fd, const void *from, size_t n, off_t o) { CALL(pwrite, of_fd(fd), -1, REAL(pwrite)(fd, from, n, o)) }
ssize_t pwrite64(int fd, const void *from, size_t n, off64_t o) { CALL(pwrite64, of_fd(fd), -1, REAL(pwrite64)(fd, from, n, o)) }
int fsync(int fd) { CALL(fsync, of_fd(fd), -1, REAL(fsync)(fd)) }
int fdatasync(int fd) { CALL(fdatasync, of_fd(fd), -1, REAL(fdatasync)(fd)) }
int ftruncate(int fd, off_t n) { CALL(ftruncate, of_fd(fd), -1, REAL(ftruncate)(fd, n)) }
int flock(int fd, int operation) { CALL(flock, IF(!(operation & LOCK_UN), of_fd(fd)), -1, REAL(flock)(fd, operation)) }
void *mmap(void *a, size_t n, int p, int f, int fd, off_t o) { CALL(mmap, of_fd(fd), MAP_FAILED, REAL(mmap)(a, n, p, f, fd, o)) }

int link(const char *from, const char *to) { CALL(link, IF(is_below(to), to), -1, REAL(link)(from, to)) }
int linkat(int a, const char *from, int d, const char *to, int flags) {
    char b[4096];
    CALL(linkat, at(d, to, b), -1, REAL(linkat)(a, from, d, to, flags))
}
int rename(const char *from, const char *to) { CALL(rename, IF(is_below(to), to), -1, REAL(rename)(from, to)) }
int renameat(int a, const char *from, int d, const char *to) {
    char b[4096];
    CALL(renameat, at(d, to, b), -1, REAL(renameat)(a, from, d, to))
}
int unlink(const char *path) { CALL(unlink, IF(is_below(path), path), -1, REAL(unlink)(path)) }
int unlinkat(int d, const char *path, int flags) { char b[4096]; CALL(unlinkat, at(d, path, b), -1, REAL(unlinkat)(d, path, flags)) }
int mkdir(const char *path, mode_t mode) { CALL(mkdir, IF(is_below(path), path), -1, REAL(mkdir)(path, mode)) }
int mkdirat(int d, const char *path, mode_t mode) { char b[4096]; CALL(mkdirat, at(d, path, b), -1, REAL(mkdirat)(d, path, mode)) }
int rmdir(const char *path) { CALL(rmdir, IF(is_below(path), path), -1, REAL(rmdir)(path)) }
int access(const char *path, int mode) { CALL(access, IF(is_below(path), path), -1, REAL(access)(path, mode)) }

int stat(const char *path, struct stat *to) { CALL(stat, IF(is_below(path), path), -1, REAL(stat)(path, to)) }
int stat64(const char *path, struct stat64 *to) { CALL(stat64, IF(is_below(path), path), -1, REAL(stat64)(path, to)) }
int lstat(const char *path, struct stat *to) { CALL(lstat, IF(is_below(path), path), -1, REAL(lstat)(path, to)) }
int lstat64(const char *path, struct stat64 *to) { CALL(lstat64, IF(is_below(path), path), -1, REAL(lstat64)(path, to)) }
int fstat(int fd, struct stat *to) { CALL(fstat, of_fd(fd), -1, REAL(fstat)(fd, to)) }
int fstat64(int fd, struct stat64 *to) { CALL(fstat64, of_fd(fd), -1, REAL(fstat64)(fd, to)) }
int fstatat(int d, const char *path, struct stat *to, int flags) { char b[4096]; CALL(fstatat, at(d, path, b), -1, REAL(fstatat)(d, path, to, flags)) }
int fstatat64(int d, const char *path, struct stat64 *to, int flags) { char b[4096]; CALL(fstatat64, at(d, path, b), -1, REAL(fstatat64)(d, path, to, flags)) }
int statx(int d, const char *path, int flags, unsigned mask, struct statx *to) {
    char b[4096];
    CALL(statx, path && *path ? at(d, path, b) : of_fd(d), -1, REAL(statx)(d, path, flags, mask, to))
}

/* The C library opens the folder by itself, so its descriptor is entered here. */
DIR *opendir(const char *path) {
    const char *mine = IF(is_below(path), path);
    int fate = mine ? counts("opendir", mine) : NOTHING;
    if (fate != NOTHING) { errno = error_number; return NULL; }
    DIR *found = REAL(opendir)(path);
    if (found) opened(dirfd(found), mine);
    return found;
}
int closedir(DIR *folder) { opened(dirfd(folder), NULL); return REAL(closedir)(folder); }
struct dirent *readdir(DIR *folder) { CALL(readdir, of_fd(dirfd(folder)), NULL, REAL(readdir)(folder)) }
struct dirent64 *readdir64(DIR *folder) { CALL(readdir64, of_fd(dirfd(folder)), NULL, REAL(readdir64)(folder)) }
