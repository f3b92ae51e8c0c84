/*
 * Loaded before a program (LD_PRELOAD): one of its allocations, or one of its system calls on
 * files, fails. Whoever calls, libraries included: allocations by taking the place of malloc,
 * system calls by a seccomp filter that turns them into a signal, whose handler makes the call or
 * fails it.
 *
 *     TORTURE=malloc:17     the 17th allocation since the program was loaded fails
 *     TORTURE=write:3       the 3rd call that changes files or writes (not to stderr)
 *     TORTURE=read:5        the 5th call that reads files or folders
 *     TORTURE_COUNT=FILE    how many there were of each, written when the program ends
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <malloc.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <ucontext.h>

/* ---- which one fails ---- */

enum { ALLOCATION, WRITE, READ, KINDS };
static const char *const names[KINDS] = {"malloc", "write", "read"};
static atomic_long count[KINDS];
static long fail_at[KINDS]; /* 0: none */
static atomic_int begun;

long torture_raw(long number, long a, long b, long c, long d, long e, long f);

/* Says so on stderr, if it is this one. */
static int fails(int kind, const char *name) {
    char text[64];
    if (!atomic_load(&begun) || atomic_fetch_add(&count[kind], 1) + 1 != fail_at[kind]) return 0;
    int n = snprintf(text, sizeof text, "torture: %s fails\n", name);
    torture_raw(SYS_write, 2, (long)text, n, 0, 0, 0);
    return 1;
}

/* ---- allocations ---- */

void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);

static int starves(void) {
    if (!fails(ALLOCATION, "malloc")) return 0;
    errno = ENOMEM;
    return 1;
}

void *malloc(size_t bytes) { return starves() ? NULL : __libc_malloc(bytes); }
void *calloc(size_t n, size_t bytes) { return starves() ? NULL : __libc_calloc(n, bytes); }
void *realloc(void *p, size_t bytes) {
    return bytes && starves() ? NULL : __libc_realloc(p, bytes);
}
void *reallocarray(void *p, size_t n, size_t bytes) {
    size_t all;
    if (!__builtin_mul_overflow(n, bytes, &all)) return realloc(p, all);
    errno = ENOMEM;
    return NULL;
}
void *memalign(size_t to, size_t bytes) { return starves() ? NULL : __libc_memalign(to, bytes); }
void *aligned_alloc(size_t to, size_t bytes) { return memalign(to, bytes); }
int posix_memalign(void **out, size_t to, size_t bytes) {
    void *p = starves() ? NULL : __libc_memalign(to, bytes);
    if (!p) return ENOMEM;
    *out = p;
    return 0;
}

/* ---- system calls ---- */

#if defined(__x86_64__)
#define ARCH AUDIT_ARCH_X86_64
#define RESULT(c) ((c)->uc_mcontext.gregs[REG_RAX])
static long argument(const ucontext_t *c, int i) {
    static const int registers[6] = {REG_RDI, REG_RSI, REG_RDX, REG_R10, REG_R8, REG_R9};
    return (long)c->uc_mcontext.gregs[registers[i]];
}
/* the address after its syscall instruction is how the filter knows it */
__asm__(".text\n.globl torture_raw\n.hidden torture_raw\ntorture_raw:\n"
        "mov %rdi, %rax\nmov %rsi, %rdi\nmov %rdx, %rsi\nmov %rcx, %rdx\n"
        "mov %r8, %r10\nmov %r9, %r8\nmov 8(%rsp), %r9\nsyscall\n"
        ".globl torture_raw_end\n.hidden torture_raw_end\ntorture_raw_end:\nret\n");
#elif defined(__aarch64__)
#define ARCH AUDIT_ARCH_AARCH64
#define RESULT(c) ((c)->uc_mcontext.regs[0])
static long argument(const ucontext_t *c, int i) { return (long)c->uc_mcontext.regs[i]; }
__asm__(
    ".text\n.globl torture_raw\n.hidden torture_raw\ntorture_raw:\n"
    "mov x8, x0\nmov x0, x1\nmov x1, x2\nmov x2, x3\nmov x3, x4\nmov x4, x5\nmov x5, x6\nsvc #0\n"
    ".globl torture_raw_end\n.hidden torture_raw_end\ntorture_raw_end:\nret\n");
#else
#error "torture: this processor's registers are not known here"
#endif
extern const char torture_raw_end[];

static const struct {
    long number;
    int kind, error;
    const char *name;
} calls[] = {
#define CALL(name, kind, error) \
    { SYS_##name, kind, error, #name }
    CALL(write, WRITE, ENOSPC),  CALL(pwrite64, WRITE, ENOSPC), CALL(writev, WRITE, ENOSPC),
    CALL(fsync, WRITE, EIO),     CALL(fdatasync, WRITE, EIO),   CALL(ftruncate, WRITE, EIO),
    CALL(close, WRITE, EIO),     CALL(renameat2, WRITE, EIO),   CALL(renameat, WRITE, EIO),
    CALL(unlinkat, WRITE, EIO),  CALL(mkdirat, WRITE, ENOSPC),  CALL(fchmod, WRITE, EPERM),
    CALL(flock, WRITE, ENOLCK),  CALL(openat, READ, EMFILE),    CALL(read, READ, EIO),
    CALL(pread64, READ, EIO),    CALL(readv, READ, EIO),        CALL(lseek, READ, EIO),
    CALL(getdents64, READ, EIO), CALL(newfstatat, READ, EIO),   CALL(fcntl, READ, EMFILE),
    CALL(faccessat, READ, EIO),  CALL(faccessat2, READ, EIO),   CALL(statx, READ, EIO),
    CALL(readlinkat, READ, EIO), CALL(mmap, READ, ENOMEM),      CALL(getrandom, READ, ENOSYS),
#if defined(__x86_64__)
    CALL(rename, WRITE, EIO),    CALL(unlink, WRITE, EIO),      CALL(mkdir, WRITE, ENOSPC),
    CALL(open, READ, EMFILE),    CALL(fstat, READ, EIO),        CALL(stat, READ, EIO),
    CALL(lstat, READ, EIO),      CALL(access, READ, EIO),       CALL(readlink, READ, EIO),
#endif
};
enum { CALLS = sizeof calls / sizeof *calls };

/* An opening that makes a file is a write. */
static int kind_of(int i, const ucontext_t *c) {
    return calls[i].number == SYS_openat && argument(c, 2) & O_CREAT ? WRITE : calls[i].kind;
}

static void on_call(int number, siginfo_t *info, void *context) {
    ucontext_t *c = context;
    long result, failed = 0;
    (void)number;
    for (int i = 0; i < CALLS; i++) {
        if (calls[i].number != info->si_syscall) continue;
        int to_stderr = info->si_syscall == SYS_write && argument(c, 0) == 2;
        if (!to_stderr && fails(kind_of(i, c), calls[i].name)) failed = calls[i].error;
    }
    if (!failed || info->si_syscall == SYS_close) /* a file whose closing fails is closed */
        result = torture_raw(info->si_syscall, argument(c, 0), argument(c, 1), argument(c, 2),
                             argument(c, 3), argument(c, 4), argument(c, 5));
    if (failed) result = -failed;
    RESULT(c) = result;
}

/* All calls of the list are trapped, unless they come from torture_raw. */
static int filter(void) {
    struct sock_filter code[CALLS + 16];
    unsigned short n = 0;
    uint64_t own = (uint64_t)(uintptr_t)torture_raw_end;
#define AT(field) (uint32_t) offsetof(struct seccomp_data, field)
#define LOAD(offset) code[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offset)
#define SKIP_UNLESS(value, steps) \
    code[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, steps)
#define ANSWER(what) code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, what)
    LOAD(AT(arch));
    SKIP_UNLESS(ARCH, 5);
    LOAD(AT(instruction_pointer));
    SKIP_UNLESS((uint32_t)own, 4);
    LOAD(AT(instruction_pointer) + 4);
    SKIP_UNLESS((uint32_t)(own >> 32), 2);
    ANSWER(SECCOMP_RET_ALLOW);
    ANSWER(SECCOMP_RET_ALLOW); /* another architecture */
    LOAD(AT(nr));
    for (int i = 0; i < CALLS; i++)
        code[n++] = (struct sock_filter)BPF_JUMP(
            BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)calls[i].number, (uint8_t)(CALLS - i), 0);
    ANSWER(SECCOMP_RET_ALLOW);
    ANSWER(SECCOMP_RET_TRAP);
    struct sock_fprog program = {n, code};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) == 0;
}

/* ---- begin and end ---- */

__attribute__((constructor)) static void begin(void) {
    const char *what = getenv("TORTURE"), *number = what ? strchr(what, ':') : NULL;
    for (int k = 0; k < KINDS && number; k++)
        if (strncmp(what, names[k], (size_t)(number - what)) == 0)
            fail_at[k] = strtol(number + 1, NULL, 10);
    struct sigaction action = {.sa_sigaction = on_call, .sa_flags = SA_SIGINFO | SA_NODEFER};
    if (!fail_at[ALLOCATION]) { /* else nobody asks for it */
        if (sigaction(SIGSYS, &action, NULL) != 0 || !filter()) _Exit(125);
    }
    atomic_store(&begun, 1);
}

__attribute__((destructor)) static void end(void) {
    const char *path = getenv("TORTURE_COUNT");
    char text[128];
    atomic_store(&begun, 0);
    if (!path) return;
    int fd = (int)torture_raw(SYS_openat, AT_FDCWD, (long)path, O_WRONLY | O_CREAT | O_TRUNC, 0666,
                              0, 0);
    int n = snprintf(text, sizeof text, "%ld %ld %ld\n", count[0], count[1], count[2]);
    torture_raw(SYS_write, fd, (long)text, n, 0, 0, 0);
}
