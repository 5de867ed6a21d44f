//! Norms against burn's layers, difficult inputs, finite differences and each other.

use crate::common::{draw, host, max_difference, parameter_gradients, shaken};
use burn::module::Module;
use burn::nn::{BatchNormConfig, GroupNormConfig, InstanceNormConfig, LayerNormConfig, RmsNormConfig};
use burn::tensor::{Device, FloatDType, Tensor, TensorData};
use unitgain_init::sample;
use unitgain_kernels::composed;
use unitgain_norms::weight::{Flavour, WeightNormConfig};
use unitgain_norms::{BatchNorm, GroupNorm, Moments, NormConfig, NormSite};
use unitgain_variant::Variant;

#[test]
fn norms_are_burns_forward_and_backward() {
    let device = Device::flex().autodiff();
    for (rows, width) in [(5, 7), (1, 32), (3, 1)] {
        let (eps, x) = (1e-5, draw("x", rows, width, &device));
        let weights = draw("weights", rows, width, &device);
        let run = |forward: &dyn Fn(Tensor<2>) -> Tensor<2>| {
            let x = x.clone().detach().require_grad();
            let y = forward(x.clone());
            let gradients = (y.clone() * weights.clone()).sum().backward();
            (host(y), host(x.grad(&gradients).unwrap()))
        };
        let ours = shaken(NormConfig::LayerNorm { eps, gain: true, bias: true }.build(NormSite::of(width), &device));
        let theirs = shaken(LayerNormConfig::new(width).with_epsilon(eps).init(&device));
        let (a, b) = (run(&|x| ours.forward(x)), run(&|x| theirs.forward(x)));
        assert!(max_difference(&a.0, &b.0) < 1e-5 && max_difference(&a.1, &b.1) < 1e-4);

        let ours =
            shaken(NormConfig::RmsNorm { eps, gain: true, unit_offset: false }.build(NormSite::of(width), &device));
        let theirs = shaken(RmsNormConfig::new(width).with_epsilon(eps).init(&device));
        let (a, b) = (run(&|x| ours.forward(x)), run(&|x| theirs.forward(x)));
        assert!(max_difference(&a.0, &b.0) < 1e-5 && max_difference(&a.1, &b.1) < 1e-4);
    }
}

#[test]
fn hard_rows_stay_finite_forward_and_backward() {
    let device = Device::flex().autodiff();
    for width in [64, 1] {
        let noise = sample::normal(2, "noise", width, 1.0);
        let times = |size: f32, mean: f32| -> Vec<f32> { noise.iter().map(|z| mean + z * size).collect() };
        let hard = [vec![0.0; width], vec![1000.1; width], times(1.0, 1e4), times(1e20, 0.0), times(1e-20, 0.0)];
        for config in NormConfig::all().iter().filter(|config| config.check_width(width).is_ok()) {
            let norm = config.build(NormSite::of(width), &device);
            // Each row alone (twice, for norms over the batch), and all rows together.
            let alone = hard.iter().map(|row| [row.clone(), row.clone()].concat());
            for rows in alone.chain([hard.concat()]) {
                let count = rows.len() / width;
                let x = Tensor::<2>::from_data(TensorData::new(rows.clone(), [count, width]), &device).require_grad();
                let y = norm.forward(x.clone());
                let gradients = (y.clone() * draw("w", count, width, &device)).sum().backward();
                assert!(host(y).iter().all(|v| v.is_finite()), "{config:?}: {:?}", &rows[..1]);
                assert!(
                    host(x.grad(&gradients).unwrap()).iter().all(|g| g.is_finite()),
                    "{config:?}: {:?}",
                    &rows[..1]
                );
            }
        }
    }
}

/// In f64, over sets of entries with common statistics: y, the gradient of x, and dy y.
fn exact(x: &[f32], dy: &[f32], sets: &[Vec<usize>], eps: f64) -> [Vec<f32>; 3] {
    let mut results = [(); 3].map(|()| vec![0.0; x.len()]);
    for set in sets {
        let of = |values: &[f32]| set.iter().map(|i| f64::from(values[*i])).collect::<Vec<f64>>();
        let mean = |values: &[f64]| values.iter().sum::<f64>() / set.len() as f64;
        let (x, dy) = (of(x), of(dy));
        let centre = mean(&x);
        let std = (mean(&x.iter().map(|x| (x - centre).powi(2)).collect::<Vec<f64>>()) + eps).sqrt();
        let y: Vec<f64> = x.iter().map(|x| (x - centre) / std).collect();
        let products: Vec<f64> = y.iter().zip(&dy).map(|(y, dy)| y * dy).collect();
        let (of_mean, of_size) = (mean(&dy), mean(&products));
        for (n, i) in set.iter().enumerate() {
            results[0][*i] = y[n] as f32;
            results[1][*i] = ((dy[n] - of_mean - y[n] * of_size) / std) as f32;
            results[2][*i] = products[n] as f32;
        }
    }
    results
}

/// The entries of `[rows, width]`, grouped by `of`.
fn sets(rows: usize, width: usize, of: impl Fn(usize, usize) -> usize) -> Vec<Vec<usize>> {
    let mut sets = vec![Vec::new(); rows * width];
    (0..rows * width).for_each(|i| sets[of(i / width, i % width)].push(i));
    sets.retain(|set| !set.is_empty());
    sets
}

#[test]
fn rows_with_a_large_mean_are_normalized_right_forward_and_backward() {
    let device = Device::flex().autodiff();
    let (sequences, time, width, eps) = (3, 20, 64, 1e-5);
    let rows = sequences * time;
    let part = |channel: usize| channel / (width / 4);
    let layer = |gain, bias| NormConfig::LayerNorm { eps, gain, bias };
    let group = |over_time| NormConfig::GroupNorm { eps, groups: 4, over_time };
    let by_row = sets(rows, width, |row, _| row);
    let kinds = [
        (layer(true, true), by_row.clone()),
        (layer(true, false), by_row.clone()),
        (layer(false, false), by_row),
        (group(false), sets(rows, width, |row, channel| row * 4 + part(channel))),
        (group(true), sets(rows, width, |row, channel| row / time * 4 + part(channel))),
        (NormConfig::InstanceNorm { eps, affine: true }, sets(rows, width, |row, c| row / time * width + c)),
        (NormConfig::BatchNorm { eps, momentum: 0.1 }, sets(rows, width, |_, channel| channel)),
    ];
    let dy = draw("large/dy", rows, width, &device);
    for mean in [1e4, -1e6] {
        let x = (draw("large/x", rows, width, &device) + mean).detach();
        let check = |what: String, forward: &dyn Fn(Tensor<2>) -> Tensor<2>, want: &[Vec<f32>; 3], scale: f32| {
            let run = || {
                let x = x.clone().require_grad();
                let y = forward(x.clone());
                let gradients = (y.clone() * dy.clone()).sum().backward();
                [host(y), host(x.grad(&gradients).unwrap())]
            };
            for (way, got) in [("fused", run()), ("composed", composed(run))] {
                for ((name, got), want) in ["y", "dx"].into_iter().zip(got).zip(want) {
                    let want: Vec<f32> = want.iter().map(|v| v * scale).collect();
                    let size = want.iter().fold(0f32, |size, v| size.max(v.abs()));
                    let error = max_difference(&got, &want) / size;
                    assert!(error < 1e-6, "{what} {way}, mean {mean}: {name} is off by {error:e} of its size");
                }
            }
        };
        for (config, sets) in &kinds {
            let norm = config.build(NormSite::of(width), &device);
            let want = exact(&host(x.clone()), &host(dy.clone()), sets, eps);
            let forward = |x: Tensor<2>| norm.forward_rows(x, sequences);
            check(format!("{config:?}"), &forward, &want, 1.0);
            if !config.has_gain() {
                continue;
            }
            // The gain's gradient reads the normalized rows again.
            let own = || {
                let gradients = (forward(x.clone()) * dy.clone()).sum().backward();
                parameter_gradients(&norm, &gradients).into_iter().find(|(path, _)| path.ends_with("gamma")).unwrap()
            };
            let of_channel = |c: usize| want[2].iter().skip(c).step_by(width).sum::<f32>();
            let want: Vec<f32> = (0..width).map(of_channel).collect();
            for (path, got) in [own(), composed(own)] {
                let error = max_difference(&got, &want);
                assert!(error < 2e-5, "{config:?}, mean {mean}: the gradient of {path} is off by {error:e}");
            }
        }

        // A batch spread over several devices.
        let norm = BatchNorm::new(width, eps, 0.1, &device);
        let by_channel = sets(rows, width, |_, channel| channel);
        let want = exact(&host(x.clone()), &host(dy.clone()), &by_channel, eps);
        let parts = [(0, 2), (2, 18), (20, rows - 20)];
        let merged = |x: Tensor<2>| {
            let parts = parts.map(|(from, rows)| x.clone().narrow(0, from, rows));
            let batch = Moments::merge(&parts.each_ref().map(Moments::of));
            Tensor::cat(parts.map(|x| norm.forward_with(x, &batch)).to_vec(), 0)
        };
        check("merged moments".into(), &merged, &want, 1.0);

        // A matrix as a weight.
        for flavour in [Flavour::Timm, Flavour::Nfnet] {
            let eps = if flavour == Flavour::Timm { 1e-6 } else { 0.0 };
            let config = WeightNormConfig::ScaledWeightStandardization { flavour, eps: None };
            let norm = config.build(&host(x.clone()), width, 1.0, 1.0, &device);
            let want = exact(&host(x.clone()), &host(dy.clone()), &by_channel, eps);
            check(format!("{config:?}"), &|w| norm.forward(w), &want, (rows as f32).sqrt().recip());
        }
    }
}

#[test]
fn a_graph_changes_no_digit_of_a_norm() {
    let device = Device::flex().autodiff();
    let x = draw("graph", 3, 64, &device) + 1e4;
    let norm = NormConfig::layer_norm().build(NormSite::of(64), &device);
    assert_eq!(host(norm.forward(x.clone())), host(norm.valid().forward(x.inner())));
}

#[test]
fn rows_past_the_range_are_zero_and_rows_within_it_right() {
    let device = Device::flex();
    let noise = sample::normal(2, "noise", 64, 1.0);
    let at = |size: f32| {
        let row: Vec<f32> = noise.iter().map(|z| z * size).collect();
        Tensor::<2>::from_data(TensorData::new(row, [1, 64]), &device)
    };
    for config in [NormConfig::layer_norm(), NormConfig::rms_norm(), NormConfig::ScaleNorm { eps: 1e-5 }] {
        let norm = config.build(NormSite::of(64), &device);
        let one = host(norm.forward(at(1e3)));
        assert!(max_difference(&host(norm.forward(at(1e26))), &one) < 1e-5, "{config:?}");
        assert!(host(norm.forward(at(1e33))).iter().all(|y| *y == 0.0), "{config:?}");
        let tiny = host(norm.forward(at(1e-30)));
        assert!(tiny.iter().all(|y| y.is_finite()), "{config:?}");
    }
}

#[test]
fn bf16_rows_are_normalized_in_f32() {
    let device = Device::flex();
    let x = (draw("bf16", 4, 256, &device) * 3.0 + 5.0).cast(FloatDType::BF16);
    for config in NormConfig::all() {
        let norm = config.build(NormSite::of(256), &device);
        let low = norm.forward(x.clone());
        assert_eq!(low.dtype(), x.dtype());
        let want = norm.forward(x.clone().cast(FloatDType::F32)).cast(FloatDType::BF16);
        assert_eq!(host(low.cast(FloatDType::F32)), host(want.cast(FloatDType::F32)));
    }
}

#[test]
fn gradients_are_those_of_finite_differences() {
    let device = Device::flex().autodiff();
    let (rows, width) = (3, 24);
    for config in NormConfig::all() {
        let norm = shaken(config.build(NormSite::of(width), &device));
        let weights = draw("fd/weights", rows, width, &device);
        let loss = |x: Tensor<2>| (norm.forward(x) * weights.clone()).sum();
        let x = draw("fd/x", rows, width, &device).require_grad();
        let gradient = host(x.grad(&loss(x.clone()).backward()).unwrap());
        let direction = draw("fd/direction", rows, width, &device);
        let step = 1e-3;
        let at = |sign: f64| f64::from(loss(x.clone() + direction.clone() * (sign * step)).into_scalar::<f32>());
        let measured = (at(1.0) - at(-1.0)) / (2.0 * step);
        let exact: f64 = gradient.iter().zip(host(direction)).map(|(g, d)| f64::from(g * d)).sum();
        assert!((measured - exact).abs() < 1e-2 * (1.0 + exact.abs()), "{config:?}: {measured} is not {exact}");
    }
}

#[test]
fn group_norm_is_layer_norm_with_one_group_and_instance_norm_with_one_for_each_channel() {
    let device = Device::flex();
    let x = draw("groups", 12, 8, &device);
    let (sequences, time) = (3, 4);
    let layer = shaken(NormConfig::layer_norm().build(NormSite::of(8), &device));
    let one = shaken(GroupNorm::new(8, 1, false, 1e-5, true, &device));
    assert!(max_difference(&host(one.forward(x.clone(), sequences)), &host(layer.forward(x.clone()))) < 1e-6);

    let instance = shaken(NormConfig::InstanceNorm { eps: 1e-5, affine: true }.build(NormSite::of(8), &device));
    let each = shaken(GroupNorm::new(8, 8, true, 1e-5, true, &device));
    let ours = host(instance.forward_rows(x.clone(), sequences));
    assert_eq!(ours, host(each.forward(x.clone(), sequences)));
    assert_eq!(ours, host(instance.forward(x.clone().reshape([sequences, time, 8]))));

    // burn has channels before time.
    let turned = |x: Tensor<2>| x.reshape([sequences, time, 8]).swap_dims(1, 2);
    let back = |y: Tensor<3>| host(y.swap_dims(1, 2));
    let theirs = shaken(InstanceNormConfig::new(8).init(&device));
    assert!(max_difference(&ours, &back(theirs.forward(turned(x.clone())))) < 1e-5);
    let groups = shaken(GroupNorm::new(8, 2, true, 1e-5, true, &device));
    let theirs = shaken(GroupNormConfig::new(2, 8).init(&device));
    assert!(max_difference(&host(groups.forward(x.clone(), sequences)), &back(theirs.forward(turned(x)))) < 1e-5);
}

// burn's running variance is biased, so evaluation differs; the golden cases have ours.
#[test]
fn batch_norm_is_burns_in_training() {
    let device = Device::flex().autodiff();
    let ours = BatchNorm::new(8, 1e-5, 0.1, &device);
    let theirs = BatchNormConfig::new(8).init(&device);
    for step in 0..4 {
        let x = draw(&format!("batch/{step}"), 12, 8, &device) * 3.0 + 1.0;
        let difference = max_difference(&host(ours.forward(x.clone())), &host(theirs.forward(x)));
        assert!(difference < 1e-5, "step {step}: {difference}");
    }
}

#[test]
fn moments_of_parts_together_are_those_of_the_batch() {
    let device = Device::flex().autodiff();
    let norm = shaken(BatchNorm::new(6, 1e-5, 0.1, &device));
    let whole = (draw("whole", 14, 6, &device) * 2.0 + 5.0).detach().require_grad();
    let weights = draw("weights", 14, 6, &device);
    let y = norm.forward(whole.clone());
    let gradient = whole.grad(&(y.clone() * weights.clone()).sum().backward()).unwrap();

    // Three replicas of 2, 5 and 7 rows.
    let parts: Vec<Tensor<2>> = [(0, 2), (2, 5), (7, 7)]
        .into_iter()
        .map(|(from, rows)| Tensor::from_inner(whole.clone().inner().narrow(0, from, rows)).require_grad())
        .collect();
    let batch = Moments::merge(&parts.iter().map(Moments::of).collect::<Vec<_>>());
    assert_eq!(batch.rows(), 14);
    let together = Tensor::cat(parts.iter().map(|x| norm.forward_with(x.clone(), &batch)).collect(), 0);
    assert!(max_difference(&host(together.clone()), &host(y)) < 1e-6);
    let gradients = (together * weights).sum().backward();
    let of_parts: Vec<f32> = parts.iter().flat_map(|x| host(x.grad(&gradients).unwrap())).collect();
    assert!(max_difference(&of_parts, &host(gradient)) < 1e-5);

    let (single, merged) = (BatchNorm::new(6, 1e-5, 0.1, &device), BatchNorm::new(6, 1e-5, 0.1, &device));
    single.forward(whole);
    merged.track(&batch).unwrap();
    let running = |norm: &BatchNorm| [norm.running().0, norm.running().1].map(host);
    let (a, b) = (running(&single), running(&merged));
    assert!(max_difference(&a[0], &b[0]) < 1e-6 && max_difference(&a[1], &b[1]) < 1e-5);
}

#[test]
fn statistics_over_a_sequence_look_at_no_other_sequence() {
    let device = Device::flex();
    let x = draw("sequences", 8, 8, &device);
    let changed = Tensor::cat(vec![x.clone().narrow(0, 0, 4), draw("other", 4, 8, &device)], 0);
    for config in NormConfig::all() {
        let norm = shaken(config.build(NormSite::of(8), &device));
        let first = |x: Tensor<2>| host(norm.forward_rows(x, 2).narrow(0, 0, 4));
        assert_eq!(first(x.clone()), first(changed.clone()), "{config:?}");
    }
}

#[test]
fn a_norm_sees_the_future_if_it_says_so() {
    let x = |device: &Device| draw("future", 8, 8, device);
    for config in NormConfig::all().into_iter().chain([NormConfig::GroupNorm { eps: 1e-5, groups: 2, over_time: true }])
    {
        for device in [Device::flex(), Device::flex().autodiff()] {
            let norm = shaken(config.build(NormSite::of(8), &device));
            let x = x(&device);
            let longer = Tensor::cat(vec![x.clone(), draw("later", 4, 8, &device)], 0);
            let now = host(norm.forward_rows(x, 1));
            let then = host(norm.forward_rows(longer, 1).narrow(0, 0, 8));
            let looks = if device.is_autodiff() { config.sees_the_future() } else { config.needs_the_sequence() };
            assert_eq!(max_difference(&now, &then) > 1e-3, looks, "{config:?}");
        }
    }
}
