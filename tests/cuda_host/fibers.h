/*
 * Fibers: functions with stacks of their own that hand control to each other on one host thread.
 */
#ifndef HOST_FIBERS_H
#define HOST_FIBERS_H

#include <stddef.h>
#include <stdint.h>

#if defined(__SANITIZE_ADDRESS__)
#define HOST_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define HOST_ASAN 1
#endif
#endif
#ifdef HOST_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#ifndef __x86_64__
#include <ucontext.h>
#endif

namespace host {

struct fiber {
    char *stack; /* its lowest byte; NULL: the host thread itself */
    size_t bytes;
#ifdef __x86_64__
    void *top; /* its stack pointer while another one runs */
#else
    ucontext_t context;
#endif
};

#ifdef __x86_64__
/* keeps what a function must keep, on the stack that is left */
extern "C" void host_fiber_switch(void **from, void *to);
asm(".text\n"
    ".globl host_fiber_switch\n"
    ".hidden host_fiber_switch\n"
    ".type host_fiber_switch, @function\n"
    "host_fiber_switch:\n"
    "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
    "movq %rsp, (%rdi)\n"
    "movq %rsi, %rsp\n"
    "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\n"
    "ret\n"
    ".size host_fiber_switch, .-host_fiber_switch\n");
#endif

/* Control comes back here when `from` is switched to again. */
__attribute__((no_sanitize("address"))) static inline void fiber_switch(fiber *from, fiber *to) {
#ifdef HOST_ASAN
    void *kept = NULL;
    __sanitizer_start_switch_fiber(&kept, to->stack, to->bytes);
#endif
#ifdef __x86_64__
    host_fiber_switch(&from->top, to->top);
#else
    swapcontext(&from->context, &to->context);
#endif
#ifdef HOST_ASAN
    __sanitizer_finish_switch_fiber(kept, NULL, NULL);
#endif
}

/* The first switch to f calls run, which never returns. */
static inline void fiber_set(fiber *f, void (*run)()) {
#ifdef __x86_64__
    void **at = (void **)(f->stack + f->bytes - 64);
    *--at = NULL; /* where run would return to; it has the alignment of a call */
    *--at = (void *)run;
    for (int i = 0; i < 6; i++) *--at = NULL;
    f->top = at;
#else
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = f->stack;
    f->context.uc_stack.ss_size = f->bytes;
    makecontext(&f->context, run, 0);
#endif
}

} // namespace host

#endif
