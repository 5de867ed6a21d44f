use std::cell::Cell;

thread_local! {
    static FUSED: Cell<bool> = const { Cell::new(true) };
}

/// Whether operations called on this thread may be fused.
pub fn is_fused() -> bool {
    FUSED.get()
}

/// Calls `f` with fused operations off on this thread. The graph that it builds is the composed one; its
/// backward pass may run anywhere.
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
