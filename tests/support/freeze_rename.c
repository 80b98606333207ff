/* Stop the process once, just before it gives a file the name in FREEZE_AT. Loaded with LD_PRELOAD.
 *
 * The signal goes to the calling thread, which could otherwise finish the call before the others stop.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static atomic_int frozen;

static void stop_before(const char *to) {
    const char *at = getenv("FREEZE_AT");
    if (at && !strcmp(to, at) && !atomic_exchange(&frozen, 1)) syscall(SYS_tgkill, getpid(), gettid(), SIGSTOP);
}

#define REAL(name) ((typeof(&name))dlsym(RTLD_NEXT, #name))

int rename(const char *from, const char *to) { stop_before(to); return REAL(rename)(from, to); }
int link(const char *from, const char *to) { stop_before(to); return REAL(link)(from, to); }
int linkat(int a, const char *from, int b, const char *to, int flags) {
    stop_before(to);
    return REAL(linkat)(a, from, b, to, flags);
}
