//! The allocator of the command.

/// glibc returns every large buffer to the kernel and requests zeroed pages again, which costs a third of a training
/// step.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Keeps freed memory in the process: a step takes what the one before gave back, and the kernel would clear it each time.
/// For commands that check the memory of all their models before they build the first: what is kept counts as used.
pub(crate) fn keep_memory() {
    /// `mi_option_purge_delay` of mimalloc.h: milliseconds, -1 for never.
    const PURGE_DELAY: i32 = 15;
    // SAFETY: both arguments are numbers, the option exists, and no other thread runs yet that could set it.
    #[allow(unsafe_code)]
    unsafe {
        libmimalloc_sys::mi_option_set_default(PURGE_DELAY, -1);
    }
}
