use std::{sync::Arc, time::Instant};

use proptest::prelude::*;
use serde_json::{Value as Json, json};

use super::*;

fn leaf(shape: DataShape, max_elements: u64) -> Arc<Declaration> {
    Arc::new(Declaration {
        shape,
        max_elements,
        min_size: 2,
    })
}

fn list(items: Arc<Declaration>, max: u64, identity: ListIdentity) -> Arc<Declaration> {
    leaf(DataShape::List { items, identity }, max)
}

fn object(fields: &[(&str, Arc<Declaration>)]) -> Arc<Declaration> {
    let fields = fields.iter().map(|(name, data)| {
        let field = DeclaredField {
            name: (*name).to_owned(),
            data: Arc::clone(data),
        };
        (escape(name).unwrap(), field)
    });
    leaf(DataShape::Object(fields.collect()), 0)
}

/// The declaration of `self` in these tests.
fn declared() -> Arc<Declaration> {
    let text = || leaf(DataShape::String, 40);
    let int = || leaf(DataShape::Int, 0);
    object(&[
        ("name", text()),
        ("replicas", int()),
        ("min-ready", int()),
        ("ratio", leaf(DataShape::Double, 0)),
        ("on", leaf(DataShape::Bool, 0)),
        ("since", leaf(DataShape::Timestamp, 32)),
        ("timeout", leaf(DataShape::Duration, 32)),
        ("data", leaf(DataShape::Bytes, 100)),
        ("port", leaf(DataShape::Any, 20)),
        ("unbounded", leaf(DataShape::String, 3_145_726)),
        ("names", list(text(), 10, ListIdentity::Position)),
        ("set", list(text(), 10, ListIdentity::Value)),
        ("numbers", list(int(), 1_000_000, ListIdentity::Position)),
        ("labels", leaf(DataShape::Map(text()), 10)),
        (
            "items",
            list(
                object(&[("key", text()), ("value", int())]),
                100,
                ListIdentity::Fields(vec!["key".into()]),
            ),
        ),
    ])
}

fn data() -> Json {
    json!({
        "name": "web", "replicas": 3, "min-ready": 5, "ratio": 1, "on": true, "since": "2024-02-29T01:02:03Z",
        "timeout": "1h30m", "data": "YWJj", "port": "50%", "unbounded": "x", "names": ["a", "bb", "a"],
        "set": ["x", "y"], "numbers": [3, 1, 2], "labels": {"a": "1", "b.c/d": "2"},
        "items": [{"key": "k", "value": 1}, {"key": "l", "value": 2}], "undeclared": 1,
    })
}

fn environment() -> Environment {
    Environment::default().with_data("self", declared())
}

#[test]
fn variables_may_have_dots_in_their_names_and_may_fail() {
    let environment = Environment::default()
        .with_type("variables.a", Type::Int)
        .with_type("variables.b", Type::Dyn);
    let run = |text: &str| {
        let program = environment
            .compile(text)
            .map_err(|error| error.to_string())?;
        let values = [Ok(Value::Int(2)), Err(Failure::Other("b failed".into()))];
        let outcome = program.evaluate_partly(values, CALL_LIMIT);
        outcome
            .result
            .map(|value| format!("{value:?}"))
            .map_err(|error| error.to_string())
    };
    assert_eq!(run("variables.a + 1").unwrap(), "Int(3)");
    assert_eq!(
        run("variables.a == 2 || variables.b").unwrap(),
        "Bool(true)"
    );
    assert_eq!(run("variables.b").unwrap_err(), "b failed");
    assert_eq!(
        run("[{'a': 'x'}].map(variables, variables.a)[0] == 'x'").unwrap(),
        "Bool(true)"
    );
    assert!(
        run("variables.a + 'x'")
            .unwrap_err()
            .contains("found no matching overload")
    );
    assert!(
        run("variables.c")
            .unwrap_err()
            .contains("undeclared reference to 'variables'")
    );
}

/// The value of an expression as text; an error as its text.
fn evaluate(text: &str) -> String {
    let program = match environment().compile(text) {
        Ok(program) => program,
        Err(error) => return error.to_string(),
    };
    let (data, declared) = (data(), declared());
    let outcome = program.evaluate([Value::of(&data, &declared)], CALL_LIMIT);
    match outcome.result {
        Ok(value) => {
            // Some of our costs are above those of the reference, whose estimate this is.
            assert!(
                outcome.cost <= program.cost().max.saturating_mul(2).saturating_add(20),
                "{text} cost {} and was estimated at {:?}",
                outcome.cost,
                program.cost()
            );
            show(&value)
        }
        Err(error) => error.to_string(),
    }
}

fn show(value: &Value<'_>) -> String {
    match value {
        Value::Null => "null".into(),
        Value::Bool(value) => value.to_string(),
        Value::Int(value) => value.to_string(),
        Value::Uint(value) => format!("{value}u"),
        Value::Double(value) => format!("{value:?}"),
        Value::String(text) => text.to_string(),
        Value::Bytes(bytes) => format!("{bytes:?}"),
        Value::List(list) => format!(
            "[{}]",
            list.iter()
                .map(|item| show(&item))
                .collect::<Vec<_>>()
                .join(" ")
        ),
        Value::Map(map) => {
            let entries = map
                .iter()
                .map(|(key, value)| format!("{}:{}", show(&key), show(&value)));
            format!("{{{}}}", entries.collect::<Vec<_>>().join(" "))
        }
        Value::Type(name) => (*name).to_owned(),
        Value::Optional(None) => "none".into(),
        Value::Optional(Some(value)) => format!("some {}", show(value)),
        Value::Quantity(quantity) => quantity.to_string(),
        Value::Ip(address) => address.to_string(),
        Value::Cidr(network) => network.to_string(),
        other => other.type_name().into(),
    }
}

#[track_caller]
fn check(cases: &[(&str, &str)]) {
    for (text, want) in cases {
        assert_eq!(evaluate(text), *want, "{text}");
    }
}

#[test]
fn operators() {
    check(&[
        ("1 + 2 * 3 - 4 / 2 % 2", "7"),
        ("1.5 + 2.0", "3.5"),
        ("2u * 3u", "6u"),
        ("-self.replicas", "-3"),
        ("'a' + 'b'", "ab"),
        ("[1] + [2]", "[1 2]"),
        ("1 < 2.5 && 3u >= 2 && 'a' < 'b' && !false", "true"),
        ("1 == 1 && [1, 2] == [1, 2] && {'a': 1} == {'a': 1}", "true"),
        ("self.replicas > 2 ? 'many' : 'few'", "many"),
        ("9223372036854775807 + 1", "integer overflow"),
        ("1u - 2u", "unsigned integer overflow"),
        ("1 / 0", "division by zero"),
        ("1 % 0", "modulus by zero"),
        ("-9223372036854775808 / -1", "integer overflow"),
        (
            "'a' in self.names && !('z' in self.names) && 'a' in self.labels",
            "true",
        ),
        ("1 / 0 == 1 || true", "true"),
        ("1 / 0 == 1 && false", "false"),
        ("1 / 0 == 1 && true", "division by zero"),
        (
            "size('äb') + size([1]) + self.labels.size() + size(b'ab')",
            "7",
        ),
    ]);
}

#[test]
fn data_has_its_declared_types() {
    check(&[
        ("self.name", "web"),
        ("self.min__dash__ready", "5"),
        ("self.ratio", "1.0"),
        ("self.since.getFullYear()", "2024"),
        ("self.since.getDate() + self.since.getHours('+02:00')", "32"),
        (
            "self.since + duration('1h') > timestamp('2024-02-29T02:00:00Z')",
            "true",
        ),
        ("self.timeout == duration('90m')", "true"),
        ("string(self.timeout)", "5400s"),
        ("self.data == b'abc'", "true"),
        (
            "type(self.port) == string && self.port.endsWith('%')",
            "true",
        ),
        ("self.labels['b.c/d'] + self.labels.a", "21"),
        ("self.labels['z']", "no such key: z"),
        ("self.names[3]", "index out of bounds: 3"),
        ("self.items[1].value", "2"),
        (
            "has(self.labels.a) && !has(self.labels.z) && has(self.name)",
            "true",
        ),
        ("self.set == ['y', 'x']", "true"),
        ("['y', 'x'] == self.set", "false"),
        ("self.set + ['x', 'z']", "[x y z]"),
    ]);
}

#[test]
fn macros() {
    check(&[
        ("self.numbers.all(n, n > 0)", "true"),
        ("self.numbers.exists(n, n == 2)", "true"),
        ("self.numbers.exists_one(n, n > 2)", "true"),
        ("self.numbers.map(n, n * 2)", "[6 2 4]"),
        ("self.numbers.map(n, n > 1, n * 2)", "[6 4]"),
        ("self.names.filter(n, n != 'a')", "[bb]"),
        ("self.labels.all(k, k != '')", "true"),
        ("[1, 0].all(n, 1 / n > 5)", "false"),
        ("[1, 0].exists(n, 1 / n == 1)", "true"),
        ("[0, 1].exists(n, 1 / n == 1)", "true"),
        ("[0].all(n, 1 / n > 5)", "division by zero"),
        ("self.names.all(i, n, i < 3)", "true"),
        ("self.labels.exists(k, v, v == '2')", "true"),
        (
            "self.names.transformList(i, n, i > 0, n + string(i))",
            "[bb1 a2]",
        ),
        ("self.labels.transformMap(k, v, v + '!')", "{a:1! b.c/d:2!}"),
        (
            "self.labels.transformMapEntry(k, v, {v: k})",
            "{1:a 2:b.c/d}",
        ),
        ("self.names.map(n, self.names.map(m, n + m)).size()", "3"),
    ]);
}

#[test]
fn optional_values() {
    check(&[
        ("self.?name.orValue('x')", "web"),
        ("self.labels[?'z'].orValue('x')", "x"),
        ("self.names[?9].hasValue()", "false"),
        ("optional.of(1).optMap(x, x + 1)", "some 2"),
        ("optional.none().optMap(x, 1)", "none"),
        ("optional.of(1).optFlatMap(x, optional.none())", "none"),
        ("optional.none().value()", "optional.none() dereference"),
        ("[?self.labels[?'a'], ?self.labels[?'z']]", "[1]"),
        (
            "{?'x': self.labels[?'a'], ?'y': self.labels[?'z']}",
            "{x:1}",
        ),
        (
            "optional.ofNonZeroValue('').or(optional.of('y')).value()",
            "y",
        ),
    ]);
}

#[test]
fn texts() {
    check(&[
        ("'tacocat'.charAt(3)", "o"),
        (
            "'hello mellow'.indexOf('ello') + 'hello mellow'.lastIndexOf('ello')",
            "8",
        ),
        ("'hello mellow'.indexOf('ello', 2)", "7"),
        ("'hello mellow'.indexOf('z')", "-1"),
        ("'äöü'.indexOf('ü')", "2"),
        (
            "'TacoCÆt'.lowerAscii() + 'tacoCæt'.upperAscii()",
            "tacocÆtTACOCæT",
        ),
        ("'hello hello'.replace('he', 'we', 1)", "wello hello"),
        ("'abc'.replace('', '-')", "-a-b-c-"),
        ("'a,b,c'.split(',')", "[a b c]"),
        ("'a,b,c'.split(',', 2)", "[a b,c]"),
        ("'abc'.split('')", "[a b c]"),
        ("['a', 'b'].join('-') + ['x'].join()", "a-bx"),
        (
            "'tacocat'.substring(4) + 'tacocat'.substring(0, 4)",
            "cattaco",
        ),
        (
            "'abc'.substring(2, 1)",
            "invalid substring range. start: 2, end: 1",
        ),
        ("'abc'.substring(9)", "index out of range: 9"),
        ("'  a\\t'.trim()", "a"),
        (
            "'%s has %d of %.1f%%'.format([dyn('x'), 3, 1.25])",
            "x has 3 of 1.2%",
        ),
        (
            "'%x %b %o %s'.format([dyn(255), 5, 8, [1, 2]])",
            "ff 101 10 [1, 2]",
        ),
        (
            "'%d'.format(['a'])",
            "could not parse argument as %d: string is not supported (argument 0)",
        ),
        ("'abc 123'.matches('[0-9]+') && matches('a', '^a$')", "true"),
        (
            "'abc 123 45'.find('[0-9]+') + string(size('abc 123 45'.findAll('[0-9]+')))",
            "1232",
        ),
        ("'1 2 3'.findAll('[0-9]', 2)", "[1 2]"),
        ("strings.quote('a\"b')", "\"a\\\"b\""),
    ]);
}

#[test]
fn libraries_of_kubernetes() {
    check(&[
        ("[1, 3].isSorted() && !['b', 'a'].isSorted()", "true"),
        (
            "self.numbers.sum() + self.numbers.max() + self.numbers.min()",
            "10",
        ),
        ("self.names.indexOf('a') + self.names.lastIndexOf('a')", "2"),
        ("[].min()", "min called on empty list"),
        (
            "sets.contains([1, 2, 3], [2]) && sets.intersects([1], [1]) && sets.equivalent([1, 1], [1])",
            "true",
        ),
        (
            "url('https://a.b:80/p?x=1&x=2').getHost() + url('https://a.b:80/p').getPort()",
            "a.b:8080",
        ),
        ("url('https://a.b/p?x=1&x=2').getQuery()['x']", "[1 2]"),
        ("isURL('https://a.b') && !isURL('a b')", "true"),
        ("quantity('1Ki').compareTo(quantity('1k'))", "1"),
        (
            "quantity('1.5').add(quantity('500m')).asInteger() + quantity('2k').sub(1).asInteger()",
            "2001",
        ),
        (
            "isQuantity('1Gi') && !isQuantity('1G1') && quantity('1').isLessThan(quantity('2'))",
            "true",
        ),
        ("quantity('100m').isInteger()", "false"),
        ("quantity('50k') == quantity('50000')", "true"),
        ("ip('192.168.0.1').family() + ip('::1').family()", "10"),
        (
            "isIP('1.2.3.4') && !isIP('01.2.3.4') && !isIP('::ffff:1.2.3.4') && !isIP('fe80::1%eth0')",
            "true",
        ),
        (
            "ip.isCanonical('2001:db8::abcd') && !ip.isCanonical('2001:DB8::ABCD')",
            "true",
        ),
        (
            "ip('127.0.0.1').isLoopback() && ip('169.254.1.1').isLinkLocalUnicast() && ip('8.8.8.8').isGlobalUnicast()",
            "true",
        ),
        ("cidr('192.168.0.1/24').masked()", "192.168.0.0/24"),
        (
            "cidr('10.0.0.0/8').prefixLength() + cidr('::/0').ip().family()",
            "14",
        ),
        (
            "cidr('10.0.0.0/8').containsIP('10.1.2.3') && cidr('10.0.0.0/8').containsIP(ip('10.1.1.1'))",
            "true",
        ),
        (
            "cidr('10.0.0.0/8').containsCIDR('10.1.0.0/16') && !cidr('10.0.0.0/8').containsCIDR(cidr('0.0.0.0/0'))",
            "true",
        ),
        (
            "isCIDR('10.0.0.0/8') && !isCIDR('10.0.0.0') && !isCIDR('10.0.0.0/33') && !isCIDR('10.0.0.0/08')",
            "true",
        ),
        ("format.dns1123Label().validate('a-b').hasValue()", "false"),
        (
            "format.named('uuid').value().validate('x').value()",
            "[does not match the UUID format]",
        ),
        (
            "type(1) == int && type('') == string && type(self.names) == list",
            "true",
        ),
        ("int('42') + int(2.9) + int(3u)", "47"),
        (
            "string(1) + string(2.0) + string(true) + string(1e30)",
            "12true1e+30",
        ),
        ("int('x')", "type conversion error from 'string' to 'int'"),
        ("dyn(1) == dyn(1.0)", "true"),
        ("dyn('a') + dyn(1)", "no such overload"),
    ]);
}

#[test]
fn errors_have_their_place_and_the_words_of_the_reference() {
    check(&[
        (
            "self.nam == 'a'",
            "ERROR: <input>:1:6: undefined field 'nam'\n | self.nam == 'a'\n | .....^",
        ),
        (
            "slf.name == 'a'",
            "ERROR: <input>:1:1: undeclared reference to 'slf' (in container '')\n | slf.name == 'a'\n | ^",
        ),
        (
            "self.name > 1",
            "ERROR: <input>:1:11: found no matching overload for '_>_' applied to '(string, int)'\n | self.name > 1\n | ..........^",
        ),
        (
            "self.name.foo()",
            "ERROR: <input>:1:11: undeclared reference to 'foo' (in container '')\n | self.name.foo()\n | ..........^",
        ),
        (
            "self.name.startsWith(1)",
            "ERROR: <input>:1:11: found no matching overload for 'startsWith' applied to 'string.(int)'\n | self.name.startsWith(1)\n | ..........^",
        ),
        (
            "self.name.matches('(')",
            "ERROR: <input>:1:11: invalid matches argument\n | self.name.matches('(')\n | ..........^",
        ),
        (
            "duration('1x')",
            "ERROR: <input>:1:1: invalid duration argument\n | duration('1x')\n | ^",
        ),
        (
            "[1, 'a']",
            "ERROR: <input>:1:1: expected type 'int' but found 'string'\n | [1, 'a']\n | ^",
        ),
    ]);
    assert!(evaluate("self.").starts_with("ERROR: <input>:1:"));
    assert!(evaluate("1 +\n +").contains("<input>:2:"));
}

#[test]
fn costs_are_estimated_as_in_the_reference() {
    // `self.numbers` has 1,000,000 elements at most: the steps of `all` cost 3 and the body 2.
    for (text, max) in [
        ("true", 0),
        ("self.on", 2),
        ("self.replicas > 1", 3),
        ("self.name == 'abc'", 3),
        ("self.name.startsWith('abc')", 3),
        ("self.name.matches('^a.c$')", 2 + 5 * 2),
        ("self.numbers.all(n, n > 0)", 2 + 1_000_000 * 5 + 1),
        (
            "self.names.all(n, self.names.all(m, n == m))",
            2 + 10 * (3 + 2 + 10 * (3 + 2 + 4) + 1) + 1,
        ),
        ("has(self.name)", 1),
        ("[1, 2].size()", 11),
    ] {
        let program = environment().compile(text).unwrap();
        assert_eq!(program.cost().max, max, "{text}");
    }
    let unbounded = environment()
        .compile("self.unbounded.contains(self.unbounded)")
        .unwrap();
    assert!(unbounded.cost().max > 10_000_000_000);
}

/// Expressions that do much work for their length.
const HOSTILE: &[&str] = &[
    "self.numbers.all(a, self.numbers.all(b, self.numbers.all(c, a + b + c > -1)))",
    "self.numbers.map(a, self.numbers).map(b, b.map(c, self.numbers)).size() > 0",
    "self.numbers.all(n, self.numbers + self.numbers == self.numbers + self.numbers)",
    "self.numbers.map(n, self.unbounded + self.unbounded).size() > 0",
    "self.numbers.all(n, self.unbounded.replace('', self.unbounded) != '')",
    "self.numbers.all(n, size(self.unbounded) > 0)",
    "self.numbers.all(n, self.unbounded.charAt(99999) == 'x')",
    "self.numbers.all(n, !self.unbounded.matches('(x+x+)+y'))",
    "self.numbers.all(n, self.unbounded.matches('(x{0,900}){0,50}' + string(n)))",
    "self.numbers.all(n, !self.unbounded.matches('[a-z]{1,500}[^x]{1,500}\\\\pL{200}' + string(n)))",
    "self.numbers.all(n, self.unbounded.findAll('.*?z|x').size() > 0)",
    "self.numbers.all(n, self.unbounded.split('').join(self.unbounded).size() > 0)",
    "self.numbers.all(n, [self.numbers] == [self.numbers])",
    "self.numbers.all(n, self.numbers.distinct().size() > 0)",
    "self.numbers.all(n, n in self.numbers)",
    "self.numbers.all(n, '%s'.format([self.numbers]).size() > 0)",
    "self.numbers.all(n, sets.equivalent(self.numbers, self.numbers))",
    "self.numbers.all(n, lists.range(9223372036854775807).size() > 0)",
    "self.numbers.transformMap(i, n, self.numbers.transformMap(j, m, self.numbers)).size() > 0",
    "self.numbers.all(n, self.unbounded.lastIndexOf('yx') < 0 && self.unbounded.trim().upperAscii() != '')",
    "self.numbers.exists(n, 1 / 0 == 1) || self.numbers.all(a, self.numbers.all(b, self.numbers.all(c, true)))",
];

#[test]
fn hostile_expressions_end_soon() {
    let declared = declared();
    let data = json!({
        "numbers": (0..200_000).collect::<Vec<_>>(),
        "unbounded": "x".repeat(1_000_000),
    });
    for text in HOSTILE {
        let program = environment().compile(text).unwrap();
        let start = Instant::now();
        let outcome = program.evaluate([Value::of(&data, &declared)], CALL_LIMIT);
        assert_eq!(outcome.result.err(), Some(Failure::Cost), "{text}");
        // Far above what it takes, so that a slow machine does not matter.
        assert!(
            start.elapsed().as_secs() < 60,
            "{text} took {:?}",
            start.elapsed()
        );
    }
}

#[test]
fn deep_and_long_expressions_are_refused() {
    let deep = |open: &str, close: &str, n: usize| open.repeat(n) + "1" + &close.repeat(n);
    for text in [
        deep("(", ")", 1_000),
        deep("[", "]", 30_000),
        deep("{1:", "}", 10_000),
        deep("size(", ")", 10_000),
        deep("!(", ")", 10_000),
        deep("[1].map(x, ", ")", 5_000),
        "self".to_owned() + &".name".repeat(10_000),
        "1".to_owned() + &" + 1".repeat(20_000),
        "1".to_owned() + &" in [1]".repeat(10_000),
        "-".repeat(90_000) + "1",
        "true ? 1 : ".repeat(9_000) + "1",
        "a".repeat(100_001),
    ] {
        let error = environment().compile(&text).unwrap_err().to_string();
        assert!(error.contains("exceed"), "{error:.200}");
    }
    // What the bound allows fits the stack of a test's thread, whatever it is.
    for n in [20, 60, 90, 100, 110, 120] {
        for (open, close) in [
            ("(", ")"),
            ("[", "]"),
            ("{1:", "}"),
            ("size(", ")"),
            ("!(", ")"),
            ("[1].map(x, ", ")"),
        ] {
            let _ = environment().compile(&deep(open, close, n));
        }
    }
    let chain = "true".to_owned() + &" || self.on".repeat(5_000);
    assert!(environment().compile(&chain).is_ok());
    let chain = "1".to_owned() + &" + 1".repeat(190);
    assert_eq!(evaluate(&chain), "191");
}

fn fragment() -> impl Strategy<Value = String> {
    prop::sample::select(vec![
        "self",
        ".",
        "name",
        "(",
        ")",
        "[",
        "]",
        "{",
        "}",
        ",",
        ":",
        "?",
        "&&",
        "||",
        "!",
        "-",
        "+",
        "*",
        "/",
        "%",
        "==",
        "<",
        " in ",
        "'a'",
        "\"",
        "'",
        "r'",
        "'''",
        "b'",
        "1",
        "1u",
        "1.5",
        "1e400",
        "0x1f",
        "null",
        "true",
        ".all(x,",
        ".map(x,",
        ".exists(i, v,",
        ".optMap(x,",
        "has(",
        "size(",
        "self.names",
        "self.items",
        "x",
        "\\u{",
        "\\",
        "//",
        "\n",
        "ä",
        "🦀",
        "`",
        ".?",
        "[?",
        "_",
        "@",
        "\0",
        "9223372036854775808",
        "-9223372036854775808",
        "type(",
        ".format([",
        "quantity(",
        "ip(",
        "timestamp('",
        "duration('",
        "matches(",
    ])
    .prop_map(str::to_owned)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn no_text_panics(parts in prop::collection::vec(fragment(), 0..40)) {
        let text = parts.concat();
        let _ = evaluate(&text);
    }

    #[test]
    fn no_characters_panic(text in "\\PC{0,60}") {
        let _ = environment().compile(&text);
    }

    #[test]
    fn no_pattern_panics(text in "[-a-z0-9()\\[\\]{}|*+?.^$\\\\&~:,QEdwsbBDWSpL]{0,30}", on in "\\PC{0,20}") {
        if let Ok(pattern) = Pattern::new(&text) {
            let _ = pattern.is_match(&on);
        }
    }

    #[test]
    fn escaped_names_come_back(name in "[a-zA-Z_./-][a-zA-Z0-9_./-]{0,12}") {
        if let Some(escaped) = escape(&name) {
            prop_assert_eq!(unescape(&escaped), Some(name));
        }
    }

    #[test]
    fn the_bound_of_depth_holds(parts in prop::collection::vec(fragment(), 0..40)) {
        let text = parts.concat();
        let parser = cel::parser::PrattParser::new().enable_optional_syntax(true).enable_ident_escape_syntax(true);
        if let Ok(tree) = parser.parse(&text) {
            // Macros add a few levels to each call.
            prop_assert!(depth_of(&tree) <= 4 + 6 * guard::depth(&text), "{text:?}");
        }
    }
}

fn depth_of(tree: &cel::IdedExpr) -> usize {
    use cel::common::ast::Expr;
    let below: Vec<&cel::IdedExpr> = match &tree.expr {
        Expr::Call(call) => call
            .target
            .iter()
            .map(|target| &**target)
            .chain(&call.args)
            .collect(),
        Expr::Select(select) => vec![&select.operand],
        Expr::List(list) => list.elements.iter().collect(),
        Expr::Comprehension(fold) => vec![&fold.iter_range, &fold.loop_step],
        _ => Vec::new(),
    };
    1 + below.into_iter().map(depth_of).max().unwrap_or_default()
}
