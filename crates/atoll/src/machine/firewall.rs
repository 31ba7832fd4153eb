//! What a ruleset of nftables does with a new TCP connection to an address of this machine.
//!
//! It reads what `nft -j list ruleset` prints, and knows the expressions that firewalls of hosts
//! are made of. What it does not know may match or not: then the answer is [`Verdict::Unclear`],
//! never a guess.

use serde_json::{Value, json};
use std::net::SocketAddr;

/// How deep chains are followed.
const DEPTH_MAX: usize = 8;

/// What becomes of a connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// No rule is in its way.
    Open,
    /// That chain drops or rejects it, by a rule or by its policy.
    Blocked { chain: String },
    /// That depends on what is not known here: where it comes from, or a rule of another kind.
    Unclear { chain: String },
}

/// Whether something is so.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Is {
    Yes,
    No,
    Maybe,
}

impl Is {
    fn from(known: bool) -> Self {
        if known { Self::Yes } else { Self::No }
    }

    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::No, _) | (_, Self::No) => Self::No,
            (Self::Yes, Self::Yes) => Self::Yes,
            _ => Self::Maybe,
        }
    }
}

/// Where a chain leads.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Accept,
    Drop,
    /// Neither: the next rule of whoever jumped here decides, or the policy.
    Next,
}

/// What rules that may match, or may not, would have done on the way.
#[derive(Clone, Copy, Default)]
struct May {
    accept: bool,
    drop: bool,
}

impl May {
    const ANYTHING: Self = Self { accept: true, drop: true };

    fn add(&mut self, other: Self) {
        self.accept |= other.accept;
        self.drop |= other.drop;
    }
}

/// What the rules do with connections to `address` from elsewhere; from this machine itself, if it
/// is an address of loopback. Of several chains the strictest counts.
pub fn verdict(ruleset: &Value, address: SocketAddr) -> Verdict {
    let parts = ruleset["nftables"].as_array().map(Vec::as_slice).unwrap_or_default();
    let family = if address.is_ipv4() { "ip" } else { "ip6" };
    let base = |part: &Value| {
        let chain = &part["chain"];
        let ours = chain["family"] == family || chain["family"] == "inet";
        (ours && chain["hook"] == "input").then(|| chain.clone())
    };
    let mut strictest = Verdict::Open;
    for chain in parts.iter().filter_map(base) {
        let name = |key: &str| chain[key].as_str().unwrap_or_default();
        let shown = format!("{} {} {}", name("family"), name("table"), name("name"));
        let (end, may) = Way { parts, chain: &chain, address }.walk(name("name"), 0);
        let drops = end == End::Drop || end == End::Next && chain["policy"] == "drop";
        match drops {
            true if !may.accept => return Verdict::Blocked { chain: shown },
            true => strictest = Verdict::Unclear { chain: shown },
            false if may.drop => strictest = Verdict::Unclear { chain: shown },
            false => {}
        }
    }
    strictest
}

/// One connection on its way through one table.
struct Way<'a> {
    parts: &'a [Value],
    /// The chain of the hook.
    chain: &'a Value,
    address: SocketAddr,
}

impl Way<'_> {
    /// Where a chain leads, and what else may have happened before.
    fn walk(&self, name: &str, depth: usize) -> (End, May) {
        if depth > DEPTH_MAX {
            return (End::Next, May::ANYTHING);
        }
        let of_chain = |part: &&Value| {
            let rule = &part["rule"];
            let same = |key: &str| rule[key] == self.chain[key];
            same("family") && same("table") && rule["chain"] == name
        };
        let mut may = May::default();
        for rule in self.parts.iter().filter(of_chain) {
            let expressions = rule["rule"]["expr"].as_array().map(Vec::as_slice);
            if let Some(end) = self.rule(expressions.unwrap_or_default(), &mut may, depth) {
                return (end, may);
            }
        }
        (End::Next, may)
    }

    /// Where a rule leads for good, if it does.
    fn rule(&self, expressions: &[Value], may: &mut May, depth: usize) -> Option<End> {
        let mut matches = Is::Yes;
        for expression in expressions {
            let Some((kind, what)) = expression.as_object().and_then(|one| one.iter().next())
            else {
                may.add(May::ANYTHING);
                return None;
            };
            match kind.as_str() {
                // They see a connection and let it pass.
                "counter" | "log" | "comment" => {}
                "match" => matches = matches.and(self.matches(what)),
                "limit" => matches = matches.and(Is::Maybe),
                // What only iptables can show.
                "xt" if what["type"] == "match" => matches = matches.and(Is::Maybe),
                "vmap" => {
                    if let Some(end) = self.map(what, matches, may, depth) {
                        return Some(end);
                    }
                }
                "accept" | "drop" | "reject" | "return" | "jump" | "goto" => {
                    if let Some(end) = self.statement(kind, what, matches, may, depth) {
                        return Some(end);
                    }
                }
                _ => {
                    may.add(May::ANYTHING);
                    matches = matches.and(Is::Maybe);
                }
            }
            if matches == Is::No {
                return None;
            }
        }
        None
    }

    /// Where a verdict leads for good whose rule matches, or may match.
    fn statement(
        &self,
        kind: &str,
        what: &Value,
        matches: Is,
        may: &mut May,
        depth: usize,
    ) -> Option<End> {
        let (end, on_the_way) = match kind {
            "accept" => (End::Accept, May::default()),
            "drop" | "reject" => (End::Drop, May::default()),
            "return" => (End::Next, May::default()),
            "jump" | "goto" => self.walk(what["target"].as_str().unwrap_or_default(), depth + 1),
            // A map may name what is not known here.
            _ => {
                may.add(May::ANYTHING);
                return None;
            }
        };
        may.add(on_the_way);
        let goes_on = kind == "jump" && end == End::Next;
        match matches {
            Is::Yes => (!goes_on).then_some(end),
            _ => {
                may.add(May { accept: end == End::Accept, drop: end == End::Drop });
                // A way that is perhaps not taken: what lies behind it is seen, too. But one that
                // ends here in the policy cannot be told from one that goes on.
                if kind == "goto" || kind == "return" {
                    may.add(May::ANYTHING);
                }
                None
            }
        }
    }

    /// A map from values to verdicts: each of its entries is as a rule.
    fn map(&self, what: &Value, matches: Is, may: &mut May, depth: usize) -> Option<End> {
        let Some(entries) = what["data"]["set"].as_array() else {
            may.add(May::ANYTHING);
            return None;
        };
        for entry in entries {
            let (value, verdict) = (&entry[0], &entry[1]);
            let of_entry = self.matches(&json!({"left": what["key"], "right": value}));
            let matches = matches.and(of_entry);
            let (kind, target) = verdict.as_object().and_then(|one| one.iter().next())?;
            if matches == Is::No {
                continue;
            }
            if let Some(end) = self.statement(kind, target, matches, may, depth) {
                return Some(end);
            }
        }
        None
    }

    fn matches(&self, what: &Value) -> Is {
        let (left, right) = (&what["left"], &what["right"]);
        let is_loopback = self.address.ip().is_loopback();
        let payload = |key: &str| left["payload"][key].as_str();
        let meta = left["meta"]["key"].as_str();
        let is = match (payload("protocol"), payload("field"), meta) {
            (Some("tcp" | "th"), Some("dport"), _) => within(right, self.address.port()),
            // A client's port, and flags: the first packet has SYN alone.
            (Some("tcp" | "th"), ..) => Is::Maybe,
            (Some("udp" | "icmp" | "icmpv6" | "sctp" | "dccp" | "esp" | "ah"), ..) => Is::No,
            (Some("ip"), Some("protocol"), _) => named(right, "tcp"),
            (_, _, Some("l4proto")) => named(right, "tcp"),
            (_, _, Some("nfproto")) => {
                named(right, if self.address.is_ipv4() { "ipv4" } else { "ipv6" })
            }
            (_, _, Some("iif" | "iifname")) if is_loopback => named(right, "lo"),
            (_, _, Some("iif" | "iifname")) => match right.as_str() {
                Some("lo") => Is::No,
                _ => Is::Maybe,
            },
            _ if left["ct"]["key"] == "state" => named(right, "new"),
            _ => Is::Maybe,
        };
        match (what["op"].as_str(), is) {
            (Some("!="), Is::Yes) => Is::No,
            (Some("!="), Is::No) => Is::Yes,
            _ => is,
        }
    }
}

/// Whether a port is one of those: a number, a range, a set of both.
fn within(right: &Value, port: u16) -> Is {
    if let Some(number) = right.as_u64() {
        return Is::from(number == u64::from(port));
    }
    if let Some([first, last]) = right["range"].as_array().map(Vec::as_slice) {
        return match (first.as_u64(), last.as_u64()) {
            (Some(first), Some(last)) => Is::from((first..=last).contains(&u64::from(port))),
            _ => Is::Maybe,
        };
    }
    match right["set"].as_array() {
        Some(all) => any(all.iter().map(|one| within(one, port))),
        // The name of a set that is elsewhere, or of a service.
        None => Is::Maybe,
    }
}

/// Whether a word is one of those.
fn named(right: &Value, word: &str) -> Is {
    if let Some(one) = right.as_str() {
        return if one.starts_with('@') { Is::Maybe } else { Is::from(one == word) };
    }
    match right["set"].as_array().or_else(|| right.as_array()) {
        Some(all) => any(all.iter().map(|one| named(one, word))),
        None => Is::Maybe,
    }
}

fn any(all: impl Iterator<Item = Is>) -> Is {
    all.fold(Is::No, |any, one| match (any, one) {
        (Is::Yes, _) | (_, Is::Yes) => Is::Yes,
        (Is::No, Is::No) => Is::No,
        _ => Is::Maybe,
    })
}

#[cfg(test)]
mod tests {
    use super::{Verdict, verdict};
    use serde_json::{Value, json};

    /// A table with a chain at the hook `input` and one beside it; each rule is its expressions.
    fn ruleset(policy: &str, input: &[Value], beside: &[Value]) -> Value {
        let rule = |chain: &str, expr: &Value| {
            json!({"rule":
            {"family": "inet", "table": "filter", "chain": chain, "expr": expr}})
        };
        let mut parts = vec![
            json!({"metainfo": {"version": "1.0.6"}}),
            json!({"table": {"family": "inet", "name": "filter"}}),
            json!({"chain": {"family": "inet", "table": "filter", "name": "input",
                "type": "filter", "hook": "input", "prio": 0, "policy": policy}}),
            json!({"chain": {"family": "inet", "table": "filter", "name": "beside"}}),
        ];
        parts.extend(input.iter().map(|expr| rule("input", expr)));
        parts.extend(beside.iter().map(|expr| rule("beside", expr)));
        json!({"nftables": parts})
    }

    fn dport(right: Value) -> Value {
        json!({"match": {"op": "==", "left": {"payload": {"protocol": "tcp", "field": "dport"}},
            "right": right}})
    }

    fn meta(key: &str, right: &str) -> Value {
        json!({"match": {"op": "==", "left": {"meta": {"key": key}}, "right": right}})
    }

    #[test]
    fn rules_in_the_way_of_a_connection_are_found_and_nothing_is_guessed() {
        let (accept, drop) = (json!({"accept": null}), json!({"drop": null}));
        let reject = json!({"reject": {"type": "tcp reset"}});
        let jump = json!({"jump": {"target": "beside"}});
        let goto = json!({"goto": {"target": "beside"}});
        let established = json!({"match": {"op": "in", "left": {"ct": {"key": "state"}},
            "right": ["established", "related"]}});
        let from = json!({"match": {"op": "==", "left": {"payload": {"protocol": "ip",
            "field": "saddr"}}, "right": "10.0.0.0"}});
        let iptables = json!({"xt": {"type": "match", "name": "multiport"}});
        let port = || dport(json!(8461));
        let (open, blocked, unclear) = (0, 1, 2);
        type Case = (&'static str, &'static str, Vec<Value>, Vec<Value>, i32);
        let cases: Vec<Case> = vec![
            ("no rules", "accept", vec![], vec![], open),
            ("a policy", "drop", vec![], vec![], blocked),
            ("what is established", "drop", vec![json!([established, accept])], vec![], blocked),
            ("loopback", "drop", vec![json!([meta("iifname", "lo"), accept])], vec![], blocked),
            ("the port", "drop", vec![json!([port(), accept])], vec![], open),
            ("another port", "drop", vec![json!([dport(json!(22)), accept])], vec![], blocked),
            (
                "a range",
                "drop",
                vec![json!([dport(json!({"range": [8460, 8469]})), accept])],
                vec![],
                open,
            ),
            (
                "a set",
                "drop",
                vec![json!([dport(json!({"set": [22, 8461]})), {"counter": {}}, accept])],
                vec![],
                open,
            ),
            ("a named set", "drop", vec![json!([dport(json!("@ports")), accept])], vec![], unclear),
            ("a rule", "accept", vec![json!([port(), drop])], vec![], blocked),
            (
                "the first rule counts",
                "accept",
                vec![json!([port(), accept]), json!([drop])],
                vec![],
                open,
            ),
            ("a last rule", "accept", vec![json!([{"counter": {}}, reject])], vec![], blocked),
            ("some sources", "drop", vec![json!([from, accept])], vec![], unclear),
            ("some sources are dropped", "accept", vec![json!([from, drop])], vec![], unclear),
            ("iptables", "drop", vec![json!([iptables, accept])], vec![], unclear),
            ("iptables before all", "accept", vec![json!([iptables, accept])], vec![], open),
            (
                "a target of iptables",
                "accept",
                vec![json!([{"xt": {"type": "target", "name": "REJECT"}}])],
                vec![],
                unclear,
            ),
            (
                "states",
                "drop",
                vec![
                    json!([{"vmap": {"key": {"ct": {"key": "state"}}, "data": {"set": [
                        ["invalid", drop], ["established", accept]]}}}]),
                    json!([port(), accept]),
                ],
                vec![],
                open,
            ),
            (
                "a map of ports",
                "drop",
                vec![json!([{"vmap": {
                    "key": {"payload": {"protocol": "tcp", "field": "dport"}},
                    "data": {"set": [[22, accept], [{"range": [8460, 8469]}, jump]]}}}])],
                vec![json!([accept])],
                open,
            ),
            (
                "a map elsewhere",
                "drop",
                vec![json!([{"vmap": {"key": {"meta": {"key": "iif"}},
                "data": "@map"}}])],
                vec![],
                unclear,
            ),
            ("udp", "accept", vec![json!([meta("l4proto", "udp"), drop])], vec![], open),
            ("tcp", "accept", vec![json!([meta("l4proto", "tcp"), drop])], vec![], blocked),
            ("a chain", "drop", vec![json!([jump])], vec![json!([port(), accept])], open),
            (
                "a chain comes back",
                "accept",
                vec![json!([jump]), json!([drop])],
                vec![json!([dport(json!(22)), accept])],
                blocked,
            ),
            (
                "and does not",
                "accept",
                vec![json!([goto]), json!([drop])],
                vec![json!([dport(json!(22)), accept])],
                open,
            ),
            ("a circle", "accept", vec![json!([jump])], vec![json!([jump])], unclear),
        ];
        let far = "10.0.0.11:8461".parse().unwrap();
        for (what, policy, input, beside, wanted) in cases {
            let chain = "inet filter input".to_owned();
            let wanted = match wanted {
                0 => Verdict::Open,
                1 => Verdict::Blocked { chain },
                _ => Verdict::Unclear { chain },
            };
            assert_eq!(verdict(&ruleset(policy, &input, &beside), far), wanted, "{what}");
        }
        // From the machine to itself.
        let near = "127.0.0.1:8461".parse().unwrap();
        let rules = ruleset("drop", &[json!([meta("iif", "lo"), accept])], &[]);
        assert_eq!(verdict(&rules, near), Verdict::Open);
        assert_ne!(verdict(&rules, far), Verdict::Open);
        // Tables of another family have no say.
        let rules = ruleset("drop", &[], &[]).to_string().replace("inet", "ip6");
        let rules: Value = serde_json::from_str(&rules).unwrap();
        assert_eq!(verdict(&rules, far), Verdict::Open);
        let chain = "ip6 filter input".to_owned();
        assert_eq!(verdict(&rules, "[fd00::1]:1".parse().unwrap()), Verdict::Blocked { chain });
    }
}
