//! Reference data: one folder per case.

use crate::common::tests_a_gpu;
use burn::tensor::{DType, TensorData};
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use unitgain_model::{Activation, ModelConfig, NormConfig, Placement, Position, ScaleConfig};

/// Folder of the reference data: `UNITGAIN_GOLDEN`, or `tests/golden`.
fn root() -> PathBuf {
    match std::env::var_os("UNITGAIN_GOLDEN") {
        Some(folder) => folder.into(),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden"),
    }
}

/// One case. It records which of its values are read: see [`Case::unasked`].
pub(crate) struct Case {
    pub(crate) name: String,
    json: Value,
    tensors: HashMap<String, Array>,
    asked: RefCell<HashSet<*const Value>>,
    asked_tensors: RefCell<HashSet<String>>,
    skipped: RefCell<Vec<(String, String)>>,
}

/// The reference's blocks without embeddings and head, in the case's sizes: GELU, with biases in the MLP only.
pub(crate) fn decoder(case: &Case) -> ModelConfig {
    ModelConfig {
        vocab_size: Some(2),
        context: case.size("T"),
        d_model: case.size("d"),
        n_heads: case.size("heads"),
        d_ff: Some(case.size("ff")),
        activation: Activation::Gelu,
        position: Position::None {},
        bias: true,
        attention_bias: Some(false),
        ..ModelConfig::default()
    }
}

/// Descriptions of a case, besides its settings, numbers and tensors. Tolerances belong to compared values.
const ABOUT: [&str; 15] = [
    "case",
    "kind",
    "notes",
    "reading",
    "footgun",
    "attention_scale_rule",
    "generated_by",
    "torch",
    "cross_checked",
    "torch_f32_error",
    "torch_f32_run",
    "loss",
    "tensors",
    "tolerance",
    "per_channel_atol",
];

/// A value of a case, which counts as asked for once it is read.
#[derive(Clone, Copy)]
pub(crate) struct Json<'a> {
    case: &'a Case,
    value: &'a Value,
}

impl fmt::Display for Json<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(f)
    }
}

impl<'a> Json<'a> {
    fn ask(self) -> &'a Value {
        self.case.asked.borrow_mut().insert(self.value);
        self.value
    }

    fn fail(self, wanted: &str) -> ! {
        panic!("{}: {} is not {wanted}", self.case.name, self.value)
    }

    /// The value of a key; null if there is none.
    pub(crate) fn at(self, key: &str) -> Self {
        Self { value: &self.value[key], ..self }
    }

    /// The value; None for null.
    pub(crate) fn given(self) -> Option<Self> {
        if self.value.is_null() {
            self.ask();
            return None;
        }
        Some(self)
    }

    pub(crate) fn f64(self) -> f64 {
        self.ask().as_f64().unwrap_or_else(|| self.fail("a number"))
    }

    pub(crate) fn size(self) -> usize {
        self.ask().as_u64().unwrap_or_else(|| self.fail("a size")) as usize
    }

    pub(crate) fn flag(self) -> bool {
        self.ask().as_bool().unwrap_or_else(|| self.fail("true or false"))
    }

    pub(crate) fn text(self) -> &'a str {
        self.ask().as_str().unwrap_or_else(|| self.fail("a text"))
    }

    pub(crate) fn is_number(self) -> bool {
        self.value.is_number()
    }

    pub(crate) fn is_list(self) -> bool {
        self.value.is_array()
    }

    /// The elements of a list.
    pub(crate) fn list(self) -> Vec<Self> {
        self.ask();
        let list = self.value.as_array().unwrap_or_else(|| self.fail("a list"));
        list.iter().map(|value| Self { value, ..self }).collect()
    }

    /// The entries of a table.
    pub(crate) fn table(self) -> Vec<(&'a str, Self)> {
        self.ask();
        let table = self.value.as_object().unwrap_or_else(|| self.fail("a table"));
        table.iter().map(|(key, value)| (key.as_str(), Self { value, ..self })).collect()
    }

    /// A list of numbers.
    pub(crate) fn numbers(self) -> Vec<f64> {
        self.list().into_iter().map(Self::f64).collect()
    }

    /// A list of sizes.
    pub(crate) fn sizes(self) -> Vec<usize> {
        self.list().into_iter().map(Self::size).collect()
    }
}

/// Collects the scalar values by path.
fn leaves<'a>(value: &'a Value, path: &str, found: &mut Vec<(String, &'a Value)>) {
    match value {
        Value::Object(table) if !table.is_empty() => {
            table.iter().for_each(|(key, value)| leaves(value, &format!("{path}/{}", part(key)), found));
        }
        Value::Array(list) if !list.is_empty() => {
            list.iter().enumerate().for_each(|(i, value)| leaves(value, &format!("{path}/{i}"), found));
        }
        Value::Object(_) | Value::Array(_) => {}
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            found.push((path.to_string(), value));
        }
    }
}

/// A key as a part of a path.
fn part(key: &str) -> String {
    key.replace('/', "|")
}

/// Whether a path matches a pattern: `*` matches one part, `**` any number of parts.
pub(crate) fn fits(pattern: &str, path: &str) -> bool {
    fn parts(pattern: &[&str], path: &[&str]) -> bool {
        match (pattern, path) {
            ([], []) => true,
            (["**", rest @ ..], _) => (0..=path.len()).any(|n| parts(rest, &path[n..])),
            ([wanted, rest @ ..], [part, others @ ..]) => (*wanted == "*" || wanted == part) && parts(rest, others),
            ([_, ..], []) | ([], [_, ..]) => false,
        }
    }
    parts(&pattern.split('/').collect::<Vec<_>>(), &path.split('/').collect::<Vec<_>>())
}

/// A tensor on the host.
#[derive(Clone)]
pub(crate) struct Array {
    pub(crate) shape: Vec<usize>,
    pub(crate) values: Vec<f64>,
}

impl Array {
    pub(crate) fn f32(&self) -> Vec<f32> {
        self.values.iter().map(|&x| x as f32).collect()
    }

    /// The transposed matrix: linear weights are `[out, in]` in the files.
    pub(crate) fn transposed(&self) -> Self {
        let [rows, columns] = self.shape[..] else { panic!("{:?} is not a matrix", self.shape) };
        let values = (0..rows * columns).map(|k| self.values[k % rows * columns + k / rows]).collect();
        Self { shape: vec![columns, rows], values }
    }

    /// A copy with a third of the numbers changed, by a little more than a quarter of the largest; a class or a token
    /// becomes another one.
    fn changed(&self) -> Self {
        let mut other = self.clone();
        let whole = self.values.iter().all(|x| x.fract() == 0.0 && (0.0..1e4).contains(x)) && self.values.len() > 8;
        let largest = self.values.iter().fold(0f64, |most, x| most.max(x.abs()));
        // An irregular pattern, which no mean over rows or columns cancels.
        for (i, value) in other.values.iter_mut().enumerate().filter(|(i, _)| (i * 7 + i / 5).is_multiple_of(3)) {
            *value = match (whole, *value) {
                (true, 0.0) => 1.0,
                (true, x) => x - 1.0,
                (false, x) => x + (0.25 * largest + 1e-3) * (1.0 + 0.3 * (i % 4) as f64),
            };
        }
        other
    }
}

/// Another value of the same type; None for null and empty values.
fn another(value: &Value) -> Option<Value> {
    Some(match value {
        Value::Bool(flag) => Value::from(!flag),
        Value::String(_) => Value::from("another"),
        Value::Number(number) => match (number.as_u64(), number.as_f64()) {
            (Some(0), _) => Value::from(1),
            (Some(n), _) => Value::from(2 * n),
            (None, Some(x)) if x.abs() < 1e-12 => Value::from(0.25),
            // A changed eps must be large to have an effect.
            (None, Some(x)) if x.abs() < 1e-4 => Value::from(100.0 * x),
            (None, Some(x)) => Value::from(1.25 * x),
            (None, None) => return None,
        },
        Value::Null | Value::Array(_) | Value::Object(_) => return None,
    })
}

/// The value at a path.
fn leaf<'a>(json: &'a mut Value, path: &str) -> &'a mut Value {
    path.split('/').fold(json, |value, part| match value {
        Value::Array(list) => &mut list[part.parse::<usize>().unwrap()],
        Value::Object(table) => table.iter_mut().find(|(key, _)| self::part(key) == part).unwrap().1,
        other => panic!("{other} has no parts"),
    })
}

/// The test of a case; false for an unknown kind.
pub(crate) type Check = fn(kind: &str, case: &Case) -> bool;

/// Runs `check` on all cases of a category, and fails if a value of a case was not asked for.
pub(crate) fn walk(category: &str, check: Check) {
    let cases = cases(category);
    // Report all failures.
    let holds = |case: &Case| catch_unwind(AssertUnwindSafe(|| case.hold(check))).is_ok();
    let failed: Vec<&str> = cases.iter().filter(|case| !holds(case)).map(|case| case.name.as_str()).collect();
    println!("{category}: {} cases", cases.len());
    assert!(failed.is_empty(), "{category}: {} of {} cases fail: {failed:?}", failed.len(), cases.len());
}

/// Whether the reference data are the repository's.
pub(crate) fn is_own() -> bool {
    std::env::var_os("UNITGAIN_GOLDEN").is_none()
}

/// The categories in the repository.
pub(crate) fn categories() -> Vec<String> {
    let folders = std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")).unwrap();
    folders.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect()
}

/// All cases of a category.
pub(crate) fn cases(category: &str) -> Vec<Case> {
    let folder = root().join(category);
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut folders: Vec<PathBuf> =
        entries.map(|e| e.unwrap().path()).filter(|p| p.join("case.json").exists()).collect();
    folders.sort();
    assert!(!folders.is_empty(), "{} has no cases", folder.display());
    folders.iter().map(|folder| Case::read(folder)).collect()
}

impl Case {
    fn new(name: String, json: Value, tensors: HashMap<String, Array>) -> Self {
        let asked = RefCell::default();
        Self { name, json, tensors, asked, asked_tensors: RefCell::default(), skipped: RefCell::default() }
    }

    fn read(folder: &Path) -> Self {
        let name = folder.file_name().unwrap().to_string_lossy().into_owned();
        let json: Value = serde_json::from_slice(&std::fs::read(folder.join("case.json")).unwrap()).unwrap();
        let mut tensors = read_tensors(folder);
        let declared = json["tensors"].as_object().unwrap_or_else(|| panic!("{name} declares no tensors"));
        assert_eq!(declared.len(), tensors.len(), "{name}: other tensors are in the file than case.json declares");
        for (tensor, about) in declared {
            let shape = tensors.get(tensor).map(|array| serde_json::json!(array.shape));
            assert_eq!(shape.as_ref(), Some(&about["shape"]), "{name}: {tensor} is not what case.json declares");
        }
        if let (Some(shared), Some(uses)) = (json["settings"]["shared"].as_str(), json["uses"].as_array()) {
            let given = read_tensors(&folder.with_file_name(shared));
            for name in uses.iter().filter_map(Value::as_str).chain(["x", "cot"]) {
                let array = given.get(name).unwrap_or_else(|| panic!("{shared} has no {name}"));
                tensors.insert(name.to_string(), array.clone());
            }
        }
        if let Some(other) = json["weights_in"].as_str() {
            tensors.extend(read_tensors(&root().join(other)).into_iter().filter(|(name, _)| name.starts_with("init.")));
        }
        Self::new(name, json, tensors)
    }

    /// The case that a setting refers to by its category and name.
    pub(crate) fn other(&self, key: &str) -> Self {
        Self::read(&root().join(self.text(key)))
    }

    /// The folder of this case of a category, for files beside its numbers.
    pub(crate) fn folder(&self, category: &str) -> PathBuf {
        root().join(category).join(&self.name)
    }

    pub(crate) fn kind(&self) -> &str {
        self.json["kind"].as_str().unwrap_or_else(|| panic!("{} has no kind", self.name))
    }

    /// Fails unless `check` knows the kind of this case, succeeds, and asks for all its values.
    pub(crate) fn hold(&self, check: Check) {
        let kind = self.kind();
        assert!(check(kind, self), "{}: no test of kind {kind:?}", self.name);
        let unasked = self.unasked();
        let shown = unasked.iter().take(40).map(String::as_str).collect::<Vec<_>>().join(", ");
        let count = unasked.len();
        assert!(
            unasked.is_empty(),
            "{}: the test of {kind:?} holds, but it neither asked for {count} things of the case nor passed them over \
             by name: {shown}",
            self.name
        );
    }

    /// Skips the values whose path matches `pattern`: parts are keys and indices, `*` matches one part, `**` any number
    /// of parts; tensors are in `tensors`.
    pub(crate) fn skip(&self, pattern: &str, why: &str) {
        self.skipped.borrow_mut().push((pattern.to_string(), why.to_string()));
    }

    /// The reason why a value is skipped.
    fn why_skipped(&self, path: &str) -> Option<String> {
        let always = match path {
            "settings/seed" => Some("of the generator, whose numbers the case holds"),
            "settings/formula" | "settings/rule" | "settings/note" => Some("words"),
            "settings/shared" | "weights_in" => Some("the folder of tensors, which are read with the case"),
            _ => None,
        };
        let named =
            || self.skipped.borrow().iter().find(|(pattern, _)| fits(pattern, path)).map(|(_, why)| why.clone());
        named().or_else(|| always.map(str::to_string))
    }

    fn all_leaves(&self) -> Vec<(String, &Value)> {
        let mut found = Vec::new();
        for (key, value) in self.json.as_object().into_iter().flatten() {
            if !ABOUT.contains(&key.as_str()) {
                leaves(value, &part(key), &mut found);
            }
        }
        found
    }

    /// All settings, expected numbers and tensors that were neither asked for nor skipped.
    fn unasked(&self) -> Vec<String> {
        let (asked, asked_tensors) = (self.asked.borrow(), self.asked_tensors.borrow());
        let leaves = self.all_leaves().into_iter();
        let values = leaves.filter(|(_, value)| !asked.contains(&std::ptr::from_ref(*value))).map(|(path, _)| path);
        let names = self.tensors.keys().filter(|name| !asked_tensors.contains(*name));
        let all = values.chain(names.map(|name| format!("tensors/{name}")));
        let mut all: Vec<String> = all.filter(|path| self.why_skipped(path).is_none()).collect();
        all.sort();
        all
    }

    /// Copies of the case with one setting, number or tensor changed, by path; and the number of skipped values, by
    /// reason. Requires that the case was held.
    pub(crate) fn changed(&self) -> (Vec<(String, Self)>, BTreeMap<String, usize>) {
        let (mut cases, mut passed) = (Vec::new(), BTreeMap::new());
        let with = |json: &Value, tensors: &HashMap<String, Array>| {
            Self::new(self.name.clone(), json.clone(), tensors.clone())
        };
        for (path, value) in self.all_leaves() {
            if let Some(why) =
                self.why_skipped(&path).filter(|_| !self.asked.borrow().contains(&std::ptr::from_ref(value)))
            {
                *passed.entry(why).or_insert(0) += 1;
                continue;
            }
            let Some(other) = another(value) else { continue };
            let mut json = self.json.clone();
            *leaf(&mut json, &path) = other;
            cases.push((path, with(&json, &self.tensors)));
        }
        for (name, array) in &self.tensors {
            let path = format!("tensors/{name}");
            if let Some(why) = self.why_skipped(&path).filter(|_| !self.asked_tensors.borrow().contains(name)) {
                *passed.entry(why).or_insert(0) += 1;
                continue;
            }
            let mut tensors = self.tensors.clone();
            tensors.insert(name.clone(), array.changed());
            cases.push((path, with(&self.json, &tensors)));
        }
        (cases, passed)
    }

    /// The case with an additional number.
    pub(crate) fn with_number(mut self, part: &str, key: &str) -> Self {
        self.json[part][key] = Value::from(0.5);
        self
    }

    /// The case with an additional tensor.
    pub(crate) fn with_tensor(mut self, name: &str) -> Self {
        self.tensors.insert(name.to_string(), Array { shape: vec![1], values: vec![0.5] });
        self
    }

    /// The case with another kind.
    pub(crate) fn of_kind(mut self, kind: &str) -> Self {
        self.json["kind"] = Value::from(kind);
        self
    }

    /// A part of the case other than settings and expected numbers.
    pub(crate) fn part(&self, key: &str) -> Json<'_> {
        Json { case: self, value: &self.json[key] }
    }

    pub(crate) fn expected(&self) -> Json<'_> {
        self.part("expected")
    }

    pub(crate) fn setting(&self, key: &str) -> Json<'_> {
        self.part("settings").at(key)
    }

    pub(crate) fn number(&self, key: &str) -> f64 {
        self.setting(key).f64()
    }

    pub(crate) fn size(&self, key: &str) -> usize {
        self.setting(key).size()
    }

    pub(crate) fn text(&self, key: &str) -> &str {
        self.setting(key).text()
    }

    pub(crate) fn flag(&self, key: &str) -> bool {
        self.setting(key).flag()
    }

    /// Fails unless the text of a setting contains each of these facts.
    pub(crate) fn says(&self, key: &str, facts: &[&str]) {
        let text = self.text(key);
        for fact in facts {
            assert!(text.contains(fact), "{}: settings.{key} does not say {fact:?}: {text:?}", self.name);
        }
    }

    /// Fails unless a size in the settings equals the size that the test read.
    pub(crate) fn same_size(&self, key: &str, size: usize) {
        assert_eq!(self.size(key), size, "{}: settings.{key} is not the size of the case's tensors", self.name);
    }

    /// The norm that the case names.
    pub(crate) fn norm(&self) -> NormConfig {
        let eps = self.number("norm_eps");
        match self.text("norm") {
            "layernorm" => NormConfig::LayerNorm { eps, gain: true, bias: true },
            "rmsnorm" => NormConfig::RmsNorm { eps, gain: true, unit_offset: false },
            other => panic!("{}: unknown norm {other:?}", self.name),
        }
    }

    pub(crate) fn array(&self, name: &str) -> &Array {
        self.find(name).unwrap_or_else(|| panic!("{}: no tensor {name}", self.name))
    }

    /// An optional tensor of the case.
    pub(crate) fn find(&self, name: &str) -> Option<&Array> {
        let found = self.tensors.get(name)?;
        self.asked_tensors.borrow_mut().insert(name.to_string());
        Some(found)
    }

    /// Names of the tensors; they do not count as asked for.
    pub(crate) fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.tensors.keys().map(String::as_str).collect();
        names.sort_unstable();
        names
    }

    /// The rest of the tensor names after a prefix.
    pub(crate) fn names_behind(&self, prefix: &str) -> Vec<&str> {
        self.names().into_iter().filter_map(|name| name.strip_prefix(prefix)).collect()
    }

    /// `atol` and `rtol` for `key`.
    pub(crate) fn tolerance(&self, key: &str) -> (f64, f64) {
        let tolerance = &self.json["tolerance"][key];
        let bound =
            |name: &str| tolerance[name].as_f64().unwrap_or_else(|| panic!("{}: no tolerance for {key}", self.name));
        (bound("atol"), bound("rtol"))
    }

    /// [`Case::close`] for one number.
    pub(crate) fn equal(&self, key: &str, what: &str, got: f64, want: Json<'_>) {
        self.close(key, what, &[got], &[want.f64()]);
    }

    /// Fails unless `|got - want| <= atol + rtol |want|` for all elements, with the case's tolerance for `key`.
    pub(crate) fn close(&self, key: &str, what: &str, got: &[f64], want: &[f64]) {
        let (atol, rtol) = self.tolerance(key);
        // If PyTorch's own float32 error exceeds the bound, the bound is ten times that error, as everywhere: a sum
        // that almost cancels has few digits.
        let of_torch = self.json["tolerance"][key]["torch_f32_worst_relative"].as_f64().unwrap_or(0.0);
        let rtol = rtol.max(10.0 * of_torch);
        // On a GPU the error of tanh and exp is absolute, however small the argument.
        let atol = if tests_a_gpu() { atol.max(2f64.powi(-23)) } else { atol };
        assert_eq!(got.len(), want.len(), "{}: {what} has another length", self.name);
        for (i, (got, want)) in got.iter().zip(want).enumerate() {
            let error = (got - want).abs();
            let allowed = atol + rtol * want.abs();
            assert!(
                error <= allowed,
                "{}: {what}[{i}] is {got}, not {want} (error {error:.2e} > {allowed:.2e})",
                self.name
            );
        }
    }
}

fn read_tensors(folder: &Path) -> HashMap<String, Array> {
    let Ok(bytes) = std::fs::read(folder.join("tensors.safetensors")) else { return HashMap::new() };
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let read = |(name, view): (&str, safetensors::tensor::TensorView<'_>)| {
        let data = view.data();
        let values = match view.dtype() {
            Dtype::F32 => data.as_chunks::<4>().0.iter().map(|b| f64::from(f32::from_le_bytes(*b))).collect(),
            Dtype::F64 => data.as_chunks::<8>().0.iter().map(|b| f64::from_le_bytes(*b)).collect(),
            Dtype::I32 => data.as_chunks::<4>().0.iter().map(|b| f64::from(i32::from_le_bytes(*b))).collect(),
            Dtype::I64 => data.as_chunks::<8>().0.iter().map(|b| i64::from_le_bytes(*b) as f64).collect(),
            Dtype::BF16 => low_precision(&view, DType::BF16),
            Dtype::F16 => low_precision(&view, DType::F16),
            other => panic!("{name} is {other:?}"),
        };
        (name.to_string(), Array { shape: view.shape().to_vec(), values })
    };
    file.iter().map(read).collect()
}

fn low_precision(view: &safetensors::tensor::TensorView<'_>, dtype: DType) -> Vec<f64> {
    TensorData::from_bytes_vec(view.data().to_vec(), view.shape().to_vec(), dtype).iter::<f64>().collect()
}

/// For each name of the reference: our name, and whether the matrix is transposed.
#[derive(Default)]
pub(crate) struct Names(pub(crate) HashMap<String, (String, bool)>);

impl Names {
    pub(crate) fn plain(&mut self, theirs: &str, ours: String) {
        self.0.insert(theirs.into(), (ours, false));
    }
    pub(crate) fn turned(&mut self, theirs: &str, ours: String) {
        self.0.insert(theirs.into(), (ours, true));
    }
    pub(crate) fn norm(&mut self, theirs: &str, [gain, bias]: [&str; 2], ours: &str, has_bias: bool) {
        self.plain(&format!("{theirs}.{gain}"), format!("{ours}.gamma"));
        if has_bias {
            self.plain(&format!("{theirs}.{bias}"), format!("{ours}.beta"));
        }
    }

    /// Names in the categories blocks and trajectories, without embeddings and head. Their first layer is our block
    /// `first`.
    pub(crate) fn decoder(layers: usize, first: usize, norm: NormConfig) -> Self {
        let (variant, beta) = match norm {
            NormConfig::RmsNorm { .. } => ("RmsNorm", false),
            _ => ("LayerNorm", true),
        };
        let mut names = Self::default();
        for l in 0..layers {
            let block = format!("blocks.{}", l + first);
            for (theirs, ours) in [("wq", "query"), ("wk", "key"), ("wv", "value"), ("wo", "out")] {
                names.turned(&format!("layers.{l}.attn.{theirs}"), format!("{block}.attention.{ours}.weight"));
            }
            for (theirs, ours) in [("1", "up"), ("2", "down")] {
                names.turned(&format!("layers.{l}.mlp.w{theirs}"), format!("{block}.mlp.{ours}.weight"));
                names.plain(&format!("layers.{l}.mlp.b{theirs}"), format!("{block}.mlp.{ours}.bias"));
            }
            for (number, branch) in [("1", "around_attention"), ("2", "around_mlp")] {
                for (suffix, index) in [("", 0), ("_post", 1)] {
                    let to = format!("{block}.{branch}.norms.{index}.{variant}");
                    names.norm(&format!("layers.{l}.norm{number}{suffix}"), ["gamma", "beta"], &to, beta);
                }
                names.plain(&format!("layers.{l}.alpha"), format!("{block}.shared_scale"));
                names.plain(&format!("layers.{l}.omega{number}"), format!("{block}.{branch}.omega"));
                for scale in ["ls", "alpha"] {
                    names.plain(&format!("layers.{l}.{scale}{number}"), format!("{block}.{branch}.scale"));
                }
            }
        }
        for l in 0..layers {
            for (theirs, ours) in [("attn", "attention"), ("mlp", "mlp")] {
                let to = format!("blocks.{}.{ours}.inner_norm.{variant}", l + first);
                names.norm(&format!("layers.{l}.{theirs}.inner_norm"), ["gamma", "beta"], &to, beta);
            }
        }
        names.norm("final_norm", ["gamma", "beta"], &format!("final_norm.{variant}"), beta);
        names.norm("emb_norm", ["gamma", "beta"], &format!("embedding_norm.{variant}"), beta);
        names
    }

    /// Names in the category mup.
    pub(crate) fn mup(layers: usize) -> Self {
        let mut names = Self::default();
        names.plain("tok.weight", "embedding".into());
        names.plain("pos.weight", "position".into());
        for l in 0..layers {
            let block = format!("blocks.{l}");
            for (theirs, ours) in [("q", "query"), ("k", "key"), ("v", "value"), ("o", "out")] {
                names.turned(&format!("{block}.attn.{theirs}.weight"), format!("{block}.attention.{ours}.weight"));
            }
            for (theirs, ours) in [("fc1", "up"), ("fc2", "down")] {
                names.turned(&format!("{block}.{theirs}.weight"), format!("{block}.mlp.{ours}.weight"));
                names.plain(&format!("{block}.{theirs}.bias"), format!("{block}.mlp.{ours}.bias"));
            }
            for (theirs, ours) in [("ln1", "around_attention"), ("ln2", "around_mlp")] {
                let to = format!("{block}.{ours}.norms.0.LayerNorm");
                names.norm(&format!("{block}.{theirs}"), ["weight", "bias"], &to, true);
            }
        }
        names.norm("ln_f", ["weight", "bias"], "final_norm.LayerNorm", true);
        names.turned("head.weight", "head.weight".into());
        names
    }

    /// Tensors of a case with a name prefix, under our names and in our layout.
    pub(crate) fn ours(&self, case: &Case, names: &[&str], prefix: &str) -> HashMap<String, (Vec<usize>, Vec<f32>)> {
        let of = |name: &&str| {
            let (path, turned) = self.0.get(*name).unwrap_or_else(|| panic!("{}: unknown weight {name}", case.name));
            let array = case.array(&format!("{prefix}{name}"));
            let array = if *turned { array.transposed() } else { array.clone() };
            (path.clone(), (array.shape.clone(), array.f32()))
        };
        names.iter().map(of).collect()
    }
}

/// Placement and scale from the reference's name and the case's settings.
pub(crate) fn connection(name: &str, case: &Case) -> Option<(Placement, ScaleConfig)> {
    let one = ScaleConfig::One {};
    let learned = ScaleConfig::LayerScale { init: None };
    Some(match name {
        "pre_ln" => (Placement::PreNorm {}, one),
        "post_ln" => (Placement::PostNorm {}, one),
        "deepnorm" => (Placement::DeepNorm {}, one),
        "sandwich" => (Placement::Sandwich {}, one),
        "peri_ln" => (Placement::PeriNorm {}, one),
        "output_norm" => (Placement::OutputNorm {}, one),
        "sub_ln" => (Placement::SubNorm {}, one),
        "parallel" => (Placement::Parallel {}, one),
        "parallel_shared_norm" => (Placement::ParallelShared {}, one),
        "normformer" => (Placement::Normformer {}, one),
        "mix_ln" => {
            let layers = case.size("N");
            (Placement::MixNorm { fraction: (layers / 4).max(1) as f64 / layers as f64 }, one)
        }
        "residual_dual" => (Placement::ResDual {}, one),
        "admin" => (Placement::Admin { omega: 1.0 }, one),
        "ln_scaling" => (Placement::ScaledPreNorm {}, one),
        "plain_residual" => (Placement::None {}, one),
        "nfnet_scaled" => (Placement::None {}, ScaleConfig::Nfnet { alpha: case.number("alpha") }),
        "layerscale_nonorm" => (Placement::None {}, learned),
        "preln_layerscale" => (Placement::PreNorm {}, learned),
        "rezero" => (Placement::None {}, ScaleConfig::ReZero { shared: true }),
        "skipinit" => (Placement::None {}, ScaleConfig::SkipInit { init: 0.0 }),
        _ => return None,
    })
}
