use super::distinct;
use crate::Error;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, Exp1, StandardUniform};
use unitgain_init::sample;
use unitgain_variant::require;

pub(super) fn vocab_size() -> usize {
    32
}
pub(super) fn order() -> usize {
    2
}
pub(super) fn branching() -> usize {
    4
}

/// More contexts would take minutes and gigabytes to prepare.
const MOST_CONTEXTS: usize = 1 << 20;
const MOST_TRANSITIONS: usize = 1 << 24;
const MOST_SYMBOLS: usize = 1 << 12;

/// A Markov chain over contexts of `order` symbols. A context is a number in base `vocab_size`, oldest symbol first.
#[derive(Clone, Debug)]
pub(super) struct Chain {
    vocab_size: usize,
    order: usize,
    branching: usize,
    /// For each context the `branching` possible next symbols, and their probabilities.
    next: Vec<u32>,
    probability: Vec<f64>,
    /// Stationary distribution over contexts, and its cumulative sum.
    stationary: Vec<f64>,
    cumulative: Vec<f64>,
}

impl Chain {
    pub(super) fn new(
        vocab_size: usize,
        order: usize,
        branching: usize,
        seed: u64,
        time: usize,
    ) -> Result<Self, Error> {
        let key = "data.vocab_size";
        require(vocab_size >= 2, key, vocab_size, "must be at least 2")?;
        let problem = format!("must be from 1 to vocab_size = {vocab_size}");
        require((1..=vocab_size).contains(&branching), "data.branching", branching, problem)?;
        let problem = format!("must be from 1 to model.context = {time}");
        require((1..=time).contains(&order), "data.order", order, problem)?;
        require(vocab_size <= MOST_SYMBOLS, key, vocab_size, format!("must be at most {MOST_SYMBOLS}"))?;
        let contexts = u32::try_from(order).ok().and_then(|order| vocab_size.checked_pow(order));
        let Some(contexts) = contexts.filter(|&n| n <= MOST_CONTEXTS) else {
            let problem = format!(
                "makes vocab_size^order = {vocab_size}^{order} contexts, more than {MOST_CONTEXTS}; take less of either"
            );
            return Err(Error::value("data.order", order, problem));
        };
        let problem = format!(
            "successors of each of {contexts} contexts are more than {MOST_TRANSITIONS} transitions; take fewer of either"
        );
        require(contexts * branching <= MOST_TRANSITIONS, "data.branching", branching, problem)?;
        let mut chain = Self {
            vocab_size,
            order,
            branching,
            next: Vec::with_capacity(contexts * branching),
            probability: Vec::with_capacity(contexts * branching),
            stationary: Vec::new(),
            cumulative: Vec::new(),
        };
        let mut rng = sample::stream(seed, "markov");
        for _ in 0..contexts {
            chain.next.extend(distinct(&mut rng, vocab_size, branching).into_iter().map(|s| s as u32));
            let weights: Vec<f64> = (0..branching).map(|_| Exp1.sample(&mut rng)).collect();
            let total: f64 = weights.iter().sum();
            chain.probability.extend(weights.into_iter().map(|w| w / total));
        }
        chain.stationary = chain.find_stationary(contexts);
        chain.cumulative = running_sum(&chain.stationary);
        Ok(chain)
    }

    pub(super) fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// Mean entropy of a target given all tokens before it, for stationary sequences of `time + 1` tokens. From the
    /// `order`-th target on it is the entropy rate; the earlier targets together have the entropy of a context minus
    /// that of its first symbol.
    pub(super) fn floor(&self, time: usize) -> f64 {
        let mut first = vec![0.0; self.vocab_size];
        let oldest = self.stationary.len() / self.vocab_size;
        self.stationary.iter().enumerate().for_each(|(context, p)| first[context / oldest] += p);
        let early = entropy(&self.stationary) - entropy(&first);
        let full = time + 1 - self.order;
        (early + full as f64 * self.entropy_rate()) / time as f64
    }

    /// `length` symbols, starting from the stationary distribution.
    pub(super) fn sequence(&self, rng: &mut ChaCha8Rng, length: usize) -> Vec<i32> {
        let uniform = |rng: &mut ChaCha8Rng| -> f64 { StandardUniform.sample(rng) };
        let start = uniform(rng) * self.cumulative.last().copied().unwrap_or(1.0);
        let mut context = self.cumulative.partition_point(|&c| c <= start).min(self.stationary.len() - 1);
        let mut tokens: Vec<i32> =
            (0..self.order).rev().map(|i| (context / self.vocab_size.pow(i as u32) % self.vocab_size) as i32).collect();
        while tokens.len() < length {
            let mut u = uniform(rng);
            let (next, probability) = self.row(context);
            let mut choice = self.branching - 1;
            for (i, p) in probability.iter().enumerate() {
                if u < *p {
                    choice = i;
                    break;
                }
                u -= p;
            }
            tokens.push(next[choice] as i32);
            context = self.follow(context, next[choice]);
        }
        tokens
    }

    /// Loss of the chain itself on `symbol` given `before`: `-ln p`.
    pub(super) fn loss(&self, before: &[i32], symbol: i32) -> f64 {
        if before.len() < self.order {
            return (self.of_prefix(before) / self.of_prefix(&[before, &[symbol]].concat())).ln();
        }
        let number = |context: usize, symbol: &i32| context * self.vocab_size + *symbol as usize;
        let (next, probability) = self.row(before[before.len() - self.order..].iter().fold(0, number));
        let found = next.iter().position(|other| *other as i32 == symbol);
        found.map_or(f64::INFINITY, |i| -probability[i].ln())
    }

    /// Probability that a context begins with these symbols.
    fn of_prefix(&self, prefix: &[i32]) -> f64 {
        let size = self.vocab_size.pow((self.order - prefix.len()) as u32);
        let first = prefix.iter().fold(0, |context, symbol| context * self.vocab_size + *symbol as usize) * size;
        let before = first.checked_sub(1).map_or(0.0, |last| self.cumulative[last]);
        self.cumulative[first + size - 1] - before
    }

    fn row(&self, context: usize) -> (&[u32], &[f64]) {
        let at = context * self.branching..(context + 1) * self.branching;
        (&self.next[at.clone()], &self.probability[at])
    }

    fn follow(&self, context: usize, symbol: u32) -> usize {
        (context * self.vocab_size + symbol as usize) % (self.next.len() / self.branching)
    }

    fn entropy_rate(&self) -> f64 {
        self.stationary.iter().enumerate().map(|(context, p)| p * entropy(self.row(context).1)).sum()
    }

    /// Power iteration with damping 1/2, which converges for periodic chains too.
    fn find_stationary(&self, contexts: usize) -> Vec<f64> {
        let mut p = vec![1.0 / contexts as f64; contexts];
        for _ in 0..10_000 {
            let mut q: Vec<f64> = p.iter().map(|x| x / 2.0).collect();
            for (context, mass) in p.iter().enumerate() {
                let (next, probability) = self.row(context);
                for (&symbol, share) in next.iter().zip(probability) {
                    q[self.follow(context, symbol)] += mass * share / 2.0;
                }
            }
            let change: f64 = p.iter().zip(&q).map(|(a, b)| (a - b).abs()).sum();
            p = q;
            if change < 1e-13 {
                break;
            }
        }
        p
    }
}

fn running_sum(p: &[f64]) -> Vec<f64> {
    p.iter()
        .scan(0.0, |sum, x| {
            *sum += x;
            Some(*sum)
        })
        .collect()
}

fn entropy(p: &[f64]) -> f64 {
    p.iter().filter(|&&x| x > 0.0).map(|x| -x * x.ln()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_floor_is_the_loss_of_the_chain_itself() {
        for (order, branching, time) in [(1, 3, 12), (2, 3, 2), (2, 3, 12), (3, 2, 6)] {
            let chain = Chain::new(5, order, branching, 7, time).unwrap();
            let mut rng = sample::stream(1, "test");
            let losses: Vec<f64> = (0..20_000)
                .map(|_| {
                    let s = chain.sequence(&mut rng, time + 1);
                    (1..=time).map(|i| chain.loss(&s[..i], s[i])).sum::<f64>() / time as f64
                })
                .collect();
            let n = losses.len() as f64;
            let mean = losses.iter().sum::<f64>() / n;
            let error = (losses.iter().map(|l| (l - mean).powi(2)).sum::<f64>() / n / n).sqrt();
            let floor = chain.floor(time);
            assert!((mean - floor).abs() < 4.0 * error, "order {order}: {mean} +- {error} is not {floor}");
        }
    }

    #[test]
    fn what_can_follow_shares_a_probability_of_1() {
        let chain = Chain::new(5, 2, 3, 7, 12).unwrap();
        for before in [&[][..], &[1], &[1, 2], &[4, 1, 2]] {
            let total: f64 = (0..5).map(|next| (-chain.loss(before, next)).exp()).sum();
            assert!((total - 1.0).abs() < 1e-9, "after {before:?}: {total}");
        }
    }

    #[test]
    fn without_early_targets_the_floor_is_the_entropy_rate() {
        let chain = Chain::new(5, 1, 3, 7, 24).unwrap();
        assert!((chain.floor(24) - chain.entropy_rate()).abs() < 1e-12);
        let chain = Chain::new(5, 2, 3, 7, 24).unwrap();
        assert!(chain.floor(24) > chain.floor(240) && chain.floor(240) > chain.entropy_rate());
    }

    #[test]
    fn the_distribution_is_stationary() {
        let chain = Chain::new(6, 2, 3, 1, 8).unwrap();
        let mut next = vec![0.0; 36];
        for (context, mass) in chain.stationary.iter().enumerate() {
            let (symbols, probability) = chain.row(context);
            for (&symbol, share) in symbols.iter().zip(probability) {
                next[chain.follow(context, symbol)] += mass * share;
            }
        }
        assert!(chain.stationary.iter().zip(&next).all(|(a, b)| (a - b).abs() < 1e-12));
        assert!((chain.stationary.iter().sum::<f64>() - 1.0).abs() < 1e-12);
    }

    #[test]
    fn settings_that_do_not_fit_are_named() {
        let problem = |v, o, b, t| Chain::new(v, o, b, 1, t).unwrap_err().to_string();
        assert!(problem(1, 1, 1, 8).contains("data.vocab_size"));
        assert!(problem(8, 1, 9, 8).contains("data.branching"));
        assert!(problem(8, 9, 2, 8).contains("data.order"));
        assert!(problem(1000, 3, 2, 8).contains("1000^3"));
        assert!(problem(1 << 20, 1, 2, 8).contains("data.vocab_size"));
        assert!(problem(1024, 2, 1024, 8).contains("transitions"));
    }
}
