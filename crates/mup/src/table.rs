use crate::{Form, Parametrization, Shape, Update};
use unitgain_init::{Role, Spec};

/// The factors that a parametrization gives one weight.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Factors {
    /// Factor of the standard deviation at init.
    pub init: f64,
    /// Factor of the weight in the forward pass.
    pub forward: f64,
    /// Factor of the gradient of the layer's input, beside `forward`.
    pub backward: f64,
    /// Factor of the learning rate.
    pub lr: f64,
    /// Factor of the weight decay, where a step subtracts `lr * decay * w`.
    pub decay: f64,
    /// Factor of Adam's eps.
    pub eps: f64,
}

impl Factors {
    pub(crate) const ONE: Self = Self { init: 1.0, forward: 1.0, backward: 1.0, lr: 1.0, decay: 1.0, eps: 1.0 };
}

/// The dimensions of a weight that grow with the width.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Class {
    /// A matrix with growing fan_out.
    Input,
    /// A matrix with growing fan_in and fan_out.
    Hidden,
    /// A matrix with growing fan_in.
    Output,
    /// A vector, and its length relative to the base model.
    Vector(f64),
}

fn class(spec: &Spec, m: f64, shape: Shape, base_head_dim: Option<f64>) -> Class {
    let head_dim = shape.head_dim as f64;
    match spec.role {
        Role::Embedding => Class::Input,
        Role::Head => Class::Output,
        Role::Query | Role::Key | Role::Value | Role::AttentionOutput | Role::MlpIn | Role::MlpOut => Class::Hidden,
        Role::Statistic => Class::Vector(1.0),
        // The bias of the head has one entry for each token id.
        Role::Bias if spec.block.is_none() => Class::Vector(1.0),
        // A scalar, such as ScaleNorm's g or ReZero's alpha.
        Role::Norm | Role::QkNorm | Role::Scale if spec.fan_out == 1.0 => Class::Vector(1.0),
        // One entry for each head.
        Role::HeadScale => Class::Vector(base_head_dim.map_or(1.0, |base| m * base / head_dim)),
        Role::QkNorm => Class::Vector(base_head_dim.map_or(m, |base| head_dim / base)),
        Role::Norm | Role::Bias | Role::Scale => Class::Vector(m),
    }
}

pub(crate) fn factors(parametrization: Parametrization, spec: &Spec, shape: Shape, update: Update) -> Factors {
    let factors = of_table(parametrization, spec, shape, update);
    match spec.role {
        Role::Head => Factors { forward: factors.forward * parametrization.output_multiplier(), ..factors },
        _ => factors,
    }
}

fn of_table(parametrization: Parametrization, spec: &Spec, shape: Shape, update: Update) -> Factors {
    let growth = |base_width: usize, base_head_dim: Option<f64>| {
        let m = shape.width as f64 / base_width as f64;
        (m, class(spec, m, shape, base_head_dim))
    };
    let depth = parametrization.depth(shape.blocks).unwrap_or((1.0, 1.0));
    match parametrization.resolved(shape) {
        Parametrization::Standard {} => Factors::ONE,
        Parametrization::UMup(unit) => u_mup(spec, unit.loss, shape, update),
        Parametrization::Mup { base_width, base_head_dim, form, .. } => {
            let (m, class) = growth(base_width, base_head_dim);
            mup(class, form, m, update)
        }
        Parametrization::Spectral { base_width, base_head_dim, .. } => {
            let (_, class) = growth(base_width, base_head_dim);
            spectral(class, spec, &base_spec(base_width, spec, shape.width), update)
        }
        Parametrization::DepthMup { base_width, base_head_dim, .. } => {
            let (m, class) = growth(base_width, base_head_dim);
            mup(class, Form::Table8, m, update).in_depth(spec, depth, update)
        }
        Parametrization::CompleteP { base_width, base_head_dim, .. } => {
            let (m, class) = growth(base_width, base_head_dim);
            let factors = mup(class, Form::Table8, m, update).in_depth(spec, depth, update);
            let eps = if spec.block.is_some() { depth.0.powf(-depth.1) / m } else { 1.0 };
            Factors { eps, ..factors }
        }
    }
}

/// The table of muP. Weight decay is coupled (a step subtracts `lr * decay * w`), so it is divided by the factor of the
/// learning rate, as in microsoft/mup 1.0.0.
fn mup(class: Class, form: Form, m: f64, update: Update) -> Factors {
    let table_8 = {
        let (init, forward) = match class {
            Class::Hidden => (m.powf(-0.5), 1.0),
            Class::Output => (1.0, 1.0 / m),
            Class::Input | Class::Vector(_) => (1.0, 1.0),
        };
        let lr = match (update, class) {
            (Update::Normalized, Class::Hidden) => 1.0 / m,
            (Update::Normalized, Class::Input | Class::Output | Class::Vector(_)) => 1.0,
            (Update::Proportional, Class::Hidden) => 1.0,
            (Update::Proportional, Class::Input | Class::Output) => m,
            (Update::Proportional, Class::Vector(growth)) => growth,
        };
        Factors { init, forward, lr, decay: 1.0 / lr, ..Factors::ONE }
    };
    match (form, class) {
        (Form::Table8, _) | (_, Class::Hidden | Class::Vector(_)) => table_8,
        (Form::Table3, Class::Input) => table_8,
        (Form::Table3, Class::Output) => table_8.shifted(1.0 / m, update),
        (Form::Table9, Class::Input | Class::Output) => table_8.shifted(m.powf(-0.5), update),
    }
}

impl Factors {
    /// The factors of a weight in one of r times as many branches, each x `r^-alpha`. Its gradients are x `r^-alpha` too, and
    /// the changes of all branches have to add up to the same.
    fn in_depth(self, spec: &Spec, (r, alpha): (f64, f64), update: Update) -> Self {
        let lr = match update {
            _ if spec.block.is_none() => 1.0,
            Update::Normalized => r.powf(alpha - 1.0),
            Update::Proportional => r.powf(2.0 * alpha - 1.0),
        };
        Self { lr: self.lr * lr, ..self }
    }

    /// The equivalent factors with the weight x `theta` and its output / `theta`: gradients are / `theta`, and steps have to be
    /// x `theta`.
    fn shifted(self, theta: f64, update: Update) -> Self {
        let step = match update {
            Update::Normalized => theta,
            Update::Proportional => theta * theta,
        };
        Self {
            init: self.init * theta,
            forward: self.forward / theta,
            lr: self.lr * step,
            decay: self.decay / step,
            eps: self.eps / theta,
            ..self
        }
    }
}

fn spectral(class: Class, spec: &Spec, base: &Spec, update: Update) -> Factors {
    let fans = |spec: &Spec| match class {
        Class::Input | Class::Vector(_) => (1.0, spec.fan_out),
        Class::Hidden | Class::Output => (spec.fan_in, spec.fan_out),
    };
    let ((fan_in, fan_out), (base_in, base_out)) = (fans(spec), fans(base));
    let std = |fan_in: f64, fan_out: f64| fan_in.powf(-0.5) * (fan_out / fan_in).sqrt().min(1.0);
    let lr = match (update, class) {
        (Update::Proportional, Class::Vector(growth)) => growth,
        (Update::Proportional, _) => (fan_out / fan_in) / (base_out / base_in),
        (Update::Normalized, _) => base_in / fan_in,
    };
    let init = match class {
        Class::Vector(_) => 1.0,
        Class::Input | Class::Hidden | Class::Output => std(fan_in, fan_out) / std(base_in, base_out),
    };
    Factors { init, lr, decay: 1.0 / lr, ..Factors::ONE }
}

/// The table of u-muP, as in the authors' package 0.3.5: the learning rate of an embedding takes its width for fan_in, unlike
/// muP, and SGD follows `readout_constraint = "to_output_scale"`. Input gradients of head and MLP are computed with the
/// multiplier 1/sqrt(fan_out); the changes of both matrices of an MLP cancel.
fn u_mup(spec: &Spec, loss: f64, shape: Shape, update: Update) -> Factors {
    let fan_in = if spec.role == Role::Embedding { spec.fan_out } else { spec.fan_in };
    let (forward, backward) = match spec.role {
        Role::Head => (loss / spec.fan_in, spec.fan_in / spec.fan_out.sqrt()),
        Role::MlpIn | Role::MlpOut => (spec.fan_in.powf(-0.5), (spec.fan_in / spec.fan_out).sqrt()),
        Role::Query | Role::Key | Role::Value | Role::AttentionOutput => (spec.fan_in.powf(-0.5), 1.0),
        Role::Embedding => (1.0, 1.0),
        Role::Norm | Role::QkNorm | Role::Bias | Role::Scale | Role::HeadScale | Role::Statistic => (1.0, 1.0),
    };
    let is_weight = spec.role == Role::Embedding || spec.role.is_hidden();
    let lr = match update {
        Update::Normalized if is_weight => fan_in.powf(-0.5),
        Update::Proportional if is_weight => fan_in.sqrt(),
        Update::Proportional if spec.role != Role::Head => spec.fan_out,
        Update::Normalized | Update::Proportional => 1.0,
    };
    let lr = if spec.block.is_some() { lr / (shape.blocks as f64).sqrt() } else { lr };
    Factors { forward, backward, lr, decay: 1.0 / lr, ..Factors::ONE }
}

pub(crate) fn base_spec(base_width: usize, spec: &Spec, width: usize) -> Spec {
    let shrink = |fan: f64| fan * base_width as f64 / width as f64;
    let both = Spec { fan_in: shrink(spec.fan_in), fan_out: shrink(spec.fan_out), width: shrink(spec.width), ..*spec };
    match spec.role {
        Role::Embedding => Spec { fan_out: shrink(spec.fan_out), width: shrink(spec.width), ..*spec },
        Role::Head => Spec { fan_in: shrink(spec.fan_in), width: shrink(spec.width), ..*spec },
        Role::Bias if spec.block.is_none() => Spec { width: shrink(spec.width), ..*spec },
        Role::Query | Role::Key | Role::Value | Role::AttentionOutput | Role::MlpIn | Role::MlpOut => both,
        Role::Norm | Role::QkNorm | Role::Bias | Role::Scale | Role::HeadScale | Role::Statistic => both,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Update::{Normalized, Proportional};
    use unitgain_variant::Variant;

    const MUP: Parametrization = mup_with(None, Form::Table8);

    const fn mup_with(base_head_dim: Option<f64>, form: Form) -> Parametrization {
        Parametrization::Mup { base_width: 64, base_head_dim, output_multiplier: 1.0, form }
    }

    fn spec(role: Role, fan_in: u32, fan_out: u32) -> Spec {
        Spec { role, fan_in: fan_in.into(), fan_out: fan_out.into(), blocks: 2, block: None, width: 64.0 }
    }

    const fn shape(width: usize, head_dim: usize) -> Shape {
        Shape { width, head_dim, blocks: 2 }
    }

    #[test]
    fn every_parametrization_is_listed_under_its_own_name() {
        unitgain_variant::assert_listed::<Parametrization>();
    }

    #[test]
    fn the_base_model_is_standard() {
        let all = Parametrization::all().into_iter().filter(|p| p.unit_scaling().is_none());
        let forms = [Form::Table3, Form::Table9].map(|form| mup_with(None, form));
        for p in all.chain(forms) {
            for role in Role::ALL {
                for update in [Normalized, Proportional] {
                    for block in [None, Some(1)] {
                        let spec = Spec { block, ..spec(role, 64, 64) };
                        assert_eq!(p.factors(&spec, shape(64, 16), update), Factors::ONE, "{p:?} {role:?}");
                        assert_eq!(p.base_spec(&spec, 64), spec);
                    }
                }
            }
            assert_eq!(p.attention_logits(shape(64, 16)), Parametrization::Standard {}.attention_logits(shape(64, 16)));
            assert_eq!(p.branch_multiplier(2), 1.0);
        }
    }

    /// Table 8 of arXiv:2203.03466 at m = 4, in the numbers that microsoft/mup 1.0.0 reports.
    #[test]
    fn factors_are_those_of_table_8() {
        let at = |role, update| {
            let f = MUP.factors(&spec(role, 256, 256), shape(256, 64), update);
            (f.init, f.forward, f.lr, f.decay)
        };
        assert_eq!(at(Role::Query, Normalized), (0.5, 1.0, 0.25, 4.0));
        assert_eq!(at(Role::Query, Proportional), (0.5, 1.0, 1.0, 1.0));
        assert_eq!(at(Role::Head, Normalized), (1.0, 0.25, 1.0, 1.0));
        assert_eq!(at(Role::Head, Proportional), (1.0, 0.25, 4.0, 0.25));
        assert_eq!(at(Role::Embedding, Normalized), (1.0, 1.0, 1.0, 1.0));
        assert_eq!(at(Role::Norm, Proportional), (1.0, 1.0, 4.0, 0.25));
        for role in [Role::Scale, Role::Norm, Role::QkNorm] {
            assert_eq!(MUP.factors(&spec(role, 1, 1), shape(256, 64), Proportional), Factors::ONE);
        }
    }

    /// Tables 3 and 9 at m = 4: the columns of the paper.
    #[test]
    fn factors_are_those_of_tables_3_and_9() {
        let at = |form, role, update| {
            let f = mup_with(None, form).factors(&spec(role, 256, 256), shape(256, 64), update);
            (f.init, f.forward, f.lr)
        };
        for (form, input, output) in [
            (Form::Table3, [(1.0, 1.0, 1.0), (1.0, 1.0, 4.0)], [(0.25, 1.0, 0.25), (0.25, 1.0, 0.25)]),
            (Form::Table9, [(0.5, 2.0, 0.5), (0.5, 2.0, 1.0)], [(0.5, 0.5, 0.5), (0.5, 0.5, 1.0)]),
        ] {
            for (i, update) in [Normalized, Proportional].into_iter().enumerate() {
                assert_eq!(at(form, Role::Embedding, update), input[i], "{form:?} {update:?}");
                assert_eq!(at(form, Role::Head, update), output[i], "{form:?} {update:?}");
                assert_eq!(at(form, Role::MlpIn, update), at(Form::Table8, Role::MlpIn, update));
            }
        }
    }

    /// The limit of the spectral condition is table 3.
    #[test]
    fn the_spectral_condition_is_table_3_where_the_stream_is_wider_than_the_vocabulary() {
        let p = Parametrization::Spectral { base_width: 64, base_head_dim: None, output_multiplier: 1.0 };
        for update in [Normalized, Proportional] {
            for (role, fan_in, fan_out) in [
                (Role::Embedding, 10, 256),
                (Role::Query, 256, 256),
                (Role::MlpIn, 256, 1024),
                (Role::MlpOut, 1024, 256),
                (Role::Head, 256, 10),
                (Role::Norm, 1, 256),
            ] {
                let spec = Spec { width: 256.0, ..spec(role, fan_in, fan_out) };
                let (f, g) = (
                    p.factors(&spec, shape(256, 64), update),
                    mup_with(None, Form::Table3).factors(&spec, shape(256, 64), update),
                );
                for (f, g) in [(f.init, g.init), (f.forward, g.forward), (f.lr, g.lr), (f.decay, g.decay)] {
                    assert!((f - g).abs() < 1e-12, "{role:?} {update:?}: {f} {g}");
                }
            }
        }
        // Above it the smaller of both sides is still the stream.
        let wide = Spec { width: 256.0, ..spec(Role::Head, 256, 1000) };
        assert_eq!(p.factors(&wide, shape(256, 64), Normalized).init, 0.5);
    }

    #[test]
    fn with_a_constant_head_size_the_scale_is_constant() {
        let fixed = mup_with(Some(16.0), Form::Table8);
        let at = |p: Parametrization, width, head_dim| p.attention_logits(shape(width, head_dim));
        assert_eq!(at(fixed, 512, 16), at(fixed, 64, 16));
        assert_eq!(at(MUP, 256, 64), 4.0 / 64.0);
        let gain = fixed.factors(&spec(Role::QkNorm, 1, 16), shape(512, 16), Proportional);
        assert_eq!(gain.lr, 1.0);
        let heads = fixed.factors(&spec(Role::HeadScale, 1, 32), shape(512, 16), Proportional);
        assert_eq!(heads.lr, 8.0);
        assert_eq!(MUP.factors(&spec(Role::HeadScale, 1, 4), shape(512, 128), Proportional).lr, 1.0);
    }

    #[test]
    fn the_base_spec_keeps_the_vocabulary() {
        let wide = |role, fan_in, fan_out| Spec { width: 256.0, ..spec(role, fan_in, fan_out) };
        assert_eq!(MUP.base_spec(&wide(Role::Head, 256, 100), 256), spec(Role::Head, 64, 100));
        assert_eq!(MUP.base_spec(&wide(Role::Embedding, 100, 256), 256), spec(Role::Embedding, 100, 64));
        assert_eq!(MUP.base_spec(&wide(Role::MlpIn, 256, 1024), 256), spec(Role::MlpIn, 64, 256));
    }

    /// Table 1 of arXiv:2505.01618 at m = 4, r = 16.
    #[test]
    fn depth_factors_are_those_of_complete_p() {
        let shape = Shape { width: 256, head_dim: 64, blocks: 32 };
        let at = |p: Parametrization, role, block, update| {
            let f = p.factors(&Spec { block, blocks: 32, ..spec(role, 256, 256) }, shape, update);
            (f.init, f.lr, f.decay, f.eps)
        };
        let complete = |alpha| Parametrization::CompleteP {
            base_width: 64,
            base_depth: 2,
            base_head_dim: None,
            output_multiplier: 1.0,
            alpha,
        };
        assert_eq!(at(complete(1.0), Role::MlpIn, Some(3), Normalized), (0.5, 0.25, 4.0, 1.0 / 64.0));
        assert_eq!(at(complete(0.5), Role::MlpIn, Some(3), Normalized), (0.5, 1.0 / 16.0, 4.0, 1.0 / 16.0));
        assert_eq!(at(complete(0.5), Role::Norm, Some(3), Normalized), (1.0, 0.25, 1.0, 1.0 / 16.0));
        for role in [Role::Norm, Role::Embedding, Role::Head] {
            assert_eq!(at(complete(0.5), role, None, Normalized), (1.0, 1.0, 1.0, 1.0), "{role:?}");
        }
        assert_eq!([0.5, 1.0].map(|alpha| complete(alpha).branch_multiplier(32)), [0.25, 1.0 / 16.0]);
        assert_eq!(at(complete(1.0), Role::MlpIn, Some(3), Proportional).1, 16.0);
        let depth =
            Parametrization::DepthMup { base_width: 64, base_depth: 2, base_head_dim: None, output_multiplier: 1.0 };
        assert_eq!(at(depth, Role::MlpIn, Some(3), Normalized), (0.5, 1.0 / 16.0, 4.0, 1.0));
        assert_eq!(at(depth, Role::MlpIn, Some(3), Proportional), (0.5, 1.0, 1.0, 1.0));
        assert_eq!(depth.branch_multiplier(32), 0.25);
    }

    #[test]
    fn settings_out_of_range_are_refused() {
        let said = |p: Parametrization| p.check().unwrap_err().to_string();
        assert!(
            said(Parametrization::Spectral { base_width: 0, base_head_dim: None, output_multiplier: 1.0 })
                .contains("base_width = 0")
        );
        assert!(said(mup_with(Some(-1.0), Form::Table8)).contains("base_head_dim = -1"));
        let complete = |base_depth, alpha| Parametrization::CompleteP {
            base_width: 8,
            base_depth,
            base_head_dim: None,
            output_multiplier: 1.0,
            alpha,
        };
        assert!(said(complete(0, 1.0)).contains("base_depth = 0"));
        assert!(said(complete(2, 0.4)).contains("alpha = 0.4"));
    }
}
