//! Piecewise functions whose choice of piece can be recorded and replayed.
//!
//! The derivative of `max(x, 0)` jumps where an input crosses the kink, so a finite difference of gradients does not
//! converge as its step shrinks. [`observe`] records on which piece each input lies; [`hold`] replays that choice for other
//! inputs. Finite differences are then those of a smooth function, with the second derivatives of automatic
//! differentiation.

use burn::tensor::{Bool, Tensor, activation};
use std::cell::RefCell;

thread_local! {
    static WATCH: RefCell<Watch> = const { RefCell::new(Watch::Off) };
}

/// How this thread treats the choice of a piece.
enum Watch {
    Off,
    Kept(Vec<Tensor<1, Bool>>),
    /// The recorded choices, and the number already replayed.
    Held(Vec<Tensor<1, Bool>>, usize),
}

/// The piece of every input of every piecewise function, in the order of the calls.
#[derive(Clone, Debug, Default)]
pub struct Pieces(Vec<Tensor<1, Bool>>);

/// Whether this thread records or replays choices; every piecewise operation then has to go through this module.
pub fn are_watched() -> bool {
    WATCH.with_borrow(|watch| !matches!(watch, Watch::Off))
}

/// Calls `f`; returns its result and the pieces chosen on this thread.
pub fn observe<R>(f: impl FnOnce() -> R) -> (R, Pieces) {
    match watched(Watch::Kept(Vec::new()), f) {
        (result, Watch::Kept(pieces)) => (result, Pieces(pieces)),
        (_, Watch::Off | Watch::Held(..)) => unreachable!("what is watched ends as it began"),
    }
}

/// Calls `f` with these pieces in place of the ones it would choose.
///
/// # Panics
/// If `f` makes another number of choices than the observed function, or choices of other sizes.
pub fn hold<R>(pieces: &Pieces, f: impl FnOnce() -> R) -> R {
    match watched(Watch::Held(pieces.0.clone(), 0), f) {
        (result, Watch::Held(pieces, used)) => {
            assert!(used == pieces.len(), "{used} choices where {} were observed", pieces.len());
            result
        }
        (_, Watch::Off | Watch::Kept(_)) => unreachable!("what is watched ends as it began"),
    }
}

/// Calls `f` under `watch`; returns its result and the final state of `watch`.
fn watched<R>(watch: Watch, f: impl FnOnce() -> R) -> (R, Watch) {
    struct Restore(Option<Watch>);
    impl Drop for Restore {
        fn drop(&mut self) {
            if let Some(before) = self.0.take() {
                WATCH.set(before);
            }
        }
    }
    let mut restore = Restore(Some(WATCH.replace(watch)));
    let result = f();
    let watch = WATCH.replace(restore.0.take().unwrap_or(Watch::Off));
    (result, watch)
}

/// The recorded choice where choices are replayed, else `side()`, which is recorded if choices are.
fn choice<const D: usize>(shape: [usize; D], side: impl FnOnce() -> Tensor<D, Bool>) -> Tensor<D, Bool> {
    WATCH.with_borrow_mut(|watch| match watch {
        Watch::Off => side(),
        Watch::Kept(pieces) => {
            let side = side();
            pieces.push(side.clone().reshape([shape.iter().product::<usize>()]));
            side
        }
        Watch::Held(pieces, used) => {
            let Some(held) = pieces.get(*used) else { panic!("more than the {used} choices that were observed") };
            *used += 1;
            held.clone().reshape(shape)
        }
    })
}

/// `max(x, 0)`, with a derivative of 0 at 0.
pub fn relu<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    if !are_watched() {
        return activation::relu(x);
    }
    let below = choice(x.dims(), || x.clone().lower_equal_elem(0.0));
    x.mask_fill(below, 0.0)
}

/// `max(x, bound)`, with a derivative of 1 at the bound.
pub fn at_least<const D: usize>(x: Tensor<D>, bound: f64) -> Tensor<D> {
    if !are_watched() {
        return x.clamp_min(bound);
    }
    let below = choice(x.dims(), || x.clone().lower_elem(bound));
    x.mask_fill(below, bound)
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use super::*;
    use burn::tensor::Device;

    fn values(x: Tensor<1>) -> Vec<f32> {
        x.into_data().iter::<f32>().collect()
    }

    fn tensor(values: &[f32]) -> Tensor<1> {
        Tensor::from_data(values, &Device::flex().autodiff())
    }

    #[test]
    fn a_piece_is_held_forward_and_backward() {
        let (at, moved) = (tensor(&[-1.0, 2.0, 0.0]), tensor(&[3.0, -4.0, 5.0]));
        let twice = |x: Tensor<1>| values(relu(x.clone()) + at_least(x, 1.0));
        let (first, pieces) = observe(|| twice(at.clone()));
        assert_eq!(first, [1.0, 4.0, 1.0]);
        assert_eq!(hold(&pieces, || twice(at.clone())), first);
        assert_eq!(hold(&pieces, || twice(moved.clone())), [1.0, -8.0, 1.0]);
        assert_eq!(twice(moved.clone()), [6.0, 1.0, 10.0], "nothing stays held");
        let x = moved.require_grad();
        let (_, of_relu) = observe(|| relu(at.clone()));
        let gradients = hold(&of_relu, || relu(x.clone()).sum().backward());
        assert_eq!(x.grad(&gradients).map(|g| g.into_data().iter::<f32>().collect()), Some(vec![0.0, 1.0, 0.0]));
    }

    #[test]
    fn watching_changes_no_value_and_no_gradient() {
        let each = |x: &Tensor<1>| {
            let of =
                |y: Tensor<1>| values(x.grad(&y.sum().backward()).map(Tensor::from_inner).unwrap_or(x.zeros_like()));
            let (a, b) = (relu(x.clone()), at_least(x.clone(), 1.0));
            [values(a.clone()), values(b.clone()), of(a), of(b)]
        };
        let x = tensor(&[-1.0, 0.0, -0.0, 0.5, 1.0, 2.0]).require_grad();
        assert_eq!(observe(|| each(&x)).0, each(&x));
        assert!(values(observe(|| relu(tensor(&[f32::NAN]))).0)[0].is_nan());
    }

    #[test]
    fn another_function_than_the_observed_one_is_refused_and_leaves_nothing_held() {
        let x = tensor(&[1.0, 2.0]);
        let (_, pieces) = observe(|| relu(x.clone()));
        for calls in [0, 2] {
            let other =
                std::panic::AssertUnwindSafe(|| hold(&pieces, || (0..calls).for_each(|_| drop(relu(x.clone())))));
            assert!(std::panic::catch_unwind(other).is_err(), "{calls} calls");
            assert!(!are_watched());
        }
    }
}
