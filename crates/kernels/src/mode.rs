use std::cell::Cell;

thread_local! {
    static FUSED: Cell<bool> = const { Cell::new(true) };
}

/// Whether this thread uses fused operations. Default true.
pub fn is_fused() -> bool {
    FUSED.get()
}

/// Calls `f` with fused operations off on this thread. The graph that `f` builds is composed, wherever its backward pass
/// runs.
pub fn composed<R>(f: impl FnOnce() -> R) -> R {
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            FUSED.set(self.0);
        }
    }
    let _restore = Restore(FUSED.replace(false));
    f()
}
