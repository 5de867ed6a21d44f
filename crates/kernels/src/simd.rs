//! Loops compiled for the best instruction set of the machine.

/// 2: AVX-512 (f, bw, cd, dq, vl); 1: AVX2 and FMA; 0: the baseline of the target. std caches the answer.
#[inline]
pub fn level() -> u8 {
    #[cfg(target_arch = "x86_64")]
    {
        macro_rules! has { ($($feature:tt),*) => { $(std::arch::is_x86_feature_detected!($feature))&&* } }
        if has!("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx2", "fma") {
            return 2;
        }
        if has!("avx2", "fma") {
            return 1;
        }
    }
    0
}

/// Whether the baseline of the target has a fused multiply-add.
pub const NATIVE_FMA: bool = cfg!(any(target_feature = "fma", target_arch = "aarch64"));

/// Defines a function that runs an `#[inline(always)]` generic body, `body::<A, FMA>(..)`, compiled once for
/// each level.
///
/// The body must be plain loops: a closure that is not inlined is compiled without the features, and its `mul_add` becomes
/// a call of `fmaf`.
#[macro_export]
macro_rules! simd {
    ($(#[$doc:meta])* $vis:vis fn $name:ident $([$A:ident: $B:path])? $(<$life:lifetime>)? ($($arg:ident: $ty:ty),* $(,)?) $(-> $r:ty)? = $body:ident) => {
        $(#[$doc])*
        #[allow(clippy::too_many_arguments)]
        $vis fn $name<$($life,)? $($A: $B)?>($($arg: $ty),*) $(-> $r)? {
            #[cfg(target_arch = "x86_64")]
            #[allow(unsafe_code)]
            {
                #[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx2,fma")]
                fn v4<$($life,)? $($A: $B)?>($($arg: $ty),*) $(-> $r)? {
                    $body::<$($A,)? true>($($arg),*)
                }
                #[target_feature(enable = "avx2,fma")]
                fn v3<$($life,)? $($A: $B)?>($($arg: $ty),*) $(-> $r)? {
                    $body::<$($A,)? true>($($arg),*)
                }
                match $crate::simd::level() {
                    // SAFETY: `level` has just found the features that v4 is compiled for.
                    2 => return unsafe { v4 $(::<$A>)? ($($arg),*) },
                    // SAFETY: `level` has just found the features that v3 is compiled for.
                    1 => return unsafe { v3 $(::<$A>)? ($($arg),*) },
                    _ => {}
                }
            }
            $body::<$($A,)? { $crate::simd::NATIVE_FMA }>($($arg),*)
        }
    };
}

#[cfg(test)]
mod tests {
    simd! {
        /// Adds `x` to each.
        fn add<'a>(values: &'a mut [f32], x: f32) -> &'a mut [f32] = add_body
    }

    #[inline(always)]
    fn add_body<const F: bool>(values: &mut [f32], x: f32) -> &mut [f32] {
        for value in values.iter_mut() {
            *value += x;
        }
        values
    }

    #[test]
    fn a_loop_stays_within_slices_of_every_length() {
        for n in 0..70 {
            let mut all = vec![1.0; n + 2];
            assert_eq!(add(&mut all[1..=n], 2.0), vec![3.0; n]);
            assert_eq!((all[0], all[n + 1]), (1.0, 1.0));
        }
    }
}
