//! The OpenAPI 3.1 document, made from the table of operations and the types.
//!
//! Invariants: it has every operation of [`Op::ALL`] and nothing else, with all that its line says;
//! every reference resolves. What OpenAPI has no word for is in fields of our own: `x-role`,
//! `x-place`, `x-named-by` and `x-task`.

use crate::envelope::Missing;
use crate::problem::Code;
use crate::routes::{Op, PREFIX, Place, QUERY, Reply};
use crate::types;
use serde_json::{Map, Value, json};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

/// The document. `release` is the version of the program that serves it.
pub fn document(release: &str) -> Value {
    let mut paths = Map::new();
    for &op in Op::ALL {
        let route = op.route();
        let path = paths.entry(format!("{PREFIX}{}", route.path)).or_insert_with(|| json!({}));
        path[route.method.to_ascii_lowercase()] = operation(op);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Atoll",
            "version": release,
            "description": "Management of an Atoll cluster: volumes, hosts, disks, policies. \
                Additive within v1. Sizes are bytes, times RFC 3339 UTC.\n\n\
                x-role, the least that may: join (has one new host join), viewer (looks), \
                operator (also volumes, resync, scrubs), admin (everything). The Unix socket is \
                admin; over TLS, the token says it; over TCP without TLS everybody is a viewer, \
                or with network.api_writable an admin. x-place, which host does it, whichever is \
                asked: any (all do the same), asked (the one that is asked), named (the one that \
                x-named-by names; the one that is asked if it is absent), holder (the one with \
                the disk group that x-named-by names; all if it is absent), all. x-task: the \
                kind of the tasks that go on after the answer; /api/v1/tasks lists them.",
            "license": { "name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0" },
        },
        "paths": paths,
        "components": {
            "schemas": schemas(),
            "securitySchemes": { "token": { "type": "http", "scheme": "bearer" } },
        },
        // The Unix socket asks for nothing.
        "security": [{ "token": [] }, {}],
    })
}

fn operation(op: Op) -> Value {
    let route = op.route();
    let mut parameters: Vec<Value> = route
        .path_parameters()
        .map(|name| {
            json!({
                "name": name, "in": "path", "required": true, "schema": { "type": "string" },
                "description": format!("Name or id of the {name}"),
            })
        })
        .collect();
    for name in route.parameters() {
        let (_, kind, text) = QUERY.iter().find(|(n, ..)| *n == name).expect("tested in routes");
        parameters.push(json!({
            "name": name, "in": "query", "required": false,
            "schema": { "type": kind }, "description": text,
        }));
    }
    for (name, text) in route.headers {
        parameters.push(json!({
            "name": name, "in": "header", "required": false,
            "schema": { "type": "string" }, "description": text,
        }));
    }
    let (status, reply) = match route.reply {
        Reply::Item(name) => ("200", content(&format!("{name}Item"))),
        Reply::List(name) => ("200", content(&format!("{name}List"))),
        Reply::Nothing => ("204", json!({})),
    };
    let mut success = json!({ "description": "Done" });
    if status == "200" {
        success["content"] = reply;
    }
    let mut operation = json!({
        "operationId": format!("{op:?}"),
        "summary": route.summary,
        "tags": [route.path.split(['/', ':']).nth(1).expect("paths begin with /")],
        "parameters": parameters,
        "x-role": route.role.name(),
        "x-place": route.place.name(),
        "responses": { status: success, "default": refusal("An error; `code` says which") },
    });
    operation["responses"]["401"] = refusal("Over TLS: no token, or one that is refused");
    operation["responses"]["403"] = refusal("The caller's role is too low");
    if let Place::Named(part) | Place::Holder(part) = route.place {
        operation["x-named-by"] = json!(part);
    }
    if let Some(kind) = route.task {
        operation["x-task"] = json!(kind);
    }
    if let Some(body) = route.body {
        operation["requestBody"] = json!({ "required": true, "content": content(body) });
    }
    operation
}

fn refusal(description: &str) -> Value {
    json!({
        "description": description,
        "content": { "application/problem+json": { "schema": reference("Problem") } },
    })
}

fn content(schema: &str) -> Value {
    json!({ "application/json": { "schema": reference(schema) } })
}

/// Schemas of every type that a route names, of what they are made of, and their envelopes.
fn schemas() -> Value {
    let mut found: Vec<(String, RefOr<Schema>)> = Vec::new();
    macro_rules! add {
        ($($name:ident),* $(,)?) => {
            $({
                found.push((types::$name::name().into_owned(), types::$name::schema()));
                types::$name::schemas(&mut found);
            })*
        };
    }
    add!(
        Status,
        Cluster,
        ClusterPatch,
        Upgrade,
        UpgradeHost,
        Health,
        Host,
        HostRemoval,
        HostRemovalState,
        Disk,
        DiskWipeRequest,
        DiskWipe,
        Group,
        GroupCreate,
        Policy,
        PolicyCheckRequest,
        PolicyCheck,
        Volume,
        VolumeCreate,
        VolumePatch,
        VolumeResize,
        VolumeLockRequest,
        VolumeLock,
        Placement,
        Resync,
        ResyncPatch,
        Scrub,
        ScrubStart,
        Task,
        Event,
        Session,
        Profile,
        Token,
        TokenCreate,
        TokenMade,
        JoinTokenCreate,
        JoinTokenMade,
        HostJoin,
        HostJoined,
        JoinDirectory,
        EtcdClient,
        AuditEntry,
    );
    found.push((Missing::name().into_owned(), Missing::schema()));
    let mut all = Map::new();
    for (name, schema) in found {
        all.insert(name, serde_json::to_value(schema).expect("schemas have string keys"));
    }
    for op in Op::ALL {
        let (name, key, inner) = match op.route().reply {
            Reply::Item(name) => (name, "item", reference(name)),
            Reply::List(name) => {
                (name, "items", json!({ "type": "array", "items": reference(name) }))
            }
            Reply::Nothing => continue,
        };
        let list = key == "items";
        let mut envelope = json!({
            "type": "object",
            "required": ["kind", "version", "generated_at", key],
            "properties": {
                "kind": { "type": "string" },
                "version": { "type": "integer" },
                "generated_at": { "type": "string", "format": "date-time" },
                key: inner,
                "missing": {
                    "type": "array", "items": reference("Missing"),
                    "description": "Hosts that were to tell something and did not; absent: all \
                        have. What only they know is not in the answer, or null",
                },
            },
        });
        if list {
            envelope["properties"]["next_cursor"] = json!({ "type": "string" });
        }
        if list && name == "Event" {
            let meaning =
                "How far that is: as `cursor` it gives what comes later, also after restarts";
            envelope["properties"]["position"] =
                json!({ "type": "string", "description": meaning });
        }
        all.insert(format!("{name}{}", if list { "List" } else { "Item" }), envelope);
    }
    all.insert("Problem".into(), problem());
    Value::Object(all)
}

fn reference(name: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{name}") })
}

fn problem() -> Value {
    let codes: Vec<String> =
        Code::ALL.iter().map(|code| format!("{code} {}", code.title())).collect();
    json!({
        "type": "object",
        "description": "RFC 9457 problem details",
        "required": ["type", "title", "status", "detail", "code"],
        "properties": {
            "type": { "type": "string", "format": "uri-reference" },
            "title": { "type": "string" },
            "status": { "type": "integer" },
            "detail": { "type": "string", "description": "What is wrong, one sentence" },
            "code": { "type": "string", "description": codes.join("; ") },
            "hint": { "type": "string", "description": "What to do about it" },
            "field": { "type": "string", "description": "The field of the request" },
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn references<'a>(value: &'a Value, into: &mut BTreeSet<&'a str>) {
        match value {
            Value::Object(map) => {
                if let Some(Value::String(target)) = map.get("$ref") {
                    into.insert(target);
                }
                map.values().for_each(|v| references(v, into));
            }
            Value::Array(items) => items.iter().for_each(|v| references(v, into)),
            _ => {}
        }
    }

    #[test]
    fn the_document_has_every_route_and_every_reference_resolves() {
        let document = document("1.2.3");
        let mut targets = BTreeSet::new();
        references(&document, &mut targets);
        assert!(targets.len() > 30, "{}", targets.len());
        for target in &targets {
            let pointer = target.strip_prefix('#').expect("local references only");
            assert!(document.pointer(pointer).is_some(), "{target} leads nowhere");
        }
    }

    /// Where a part of a request is: in its path, its query or its body.
    fn has_part(document: &Value, operation: &Value, part: &str) -> bool {
        let parameters = operation["parameters"].as_array().unwrap();
        let body = &operation["requestBody"]["content"]["application/json"]["schema"]["$ref"];
        let fields = body.as_str().and_then(|target| document.pointer(target.strip_prefix('#')?));
        parameters.iter().any(|parameter| parameter["name"] == part)
            || fields.is_some_and(|body| body["properties"].get(part).is_some())
    }

    #[test]
    fn the_document_says_of_every_operation_what_the_table_says() {
        let document = document("1.2.3");
        let paths = document["paths"].as_object().unwrap();
        let count: usize = paths.values().map(|p| p.as_object().unwrap().len()).sum();
        assert_eq!(count, Op::ALL.len());
        let mut ids = BTreeSet::new();
        for op in Op::ALL {
            let route = op.route();
            let path = &paths[&format!("{PREFIX}{}", route.path)];
            let operation = &path[route.method.to_ascii_lowercase()];
            assert!(ids.insert(operation["operationId"].as_str().unwrap().to_owned()));
            let parameters = operation["parameters"].as_array().unwrap();
            let named = |place: &str| -> BTreeSet<&str> {
                let of_it = parameters.iter().filter(|parameter| parameter["in"] == place);
                of_it.map(|parameter| parameter["name"].as_str().unwrap()).collect()
            };
            assert_eq!(named("path"), route.path_parameters().collect(), "{op:?}");
            assert_eq!(named("query"), route.parameters().collect(), "{op:?}");
            assert_eq!(named("header"), route.headers.iter().map(|h| h.0).collect(), "{op:?}");
            assert_eq!(operation.get("requestBody").is_some(), route.body.is_some());
            assert_eq!(operation["x-role"], route.role.name(), "{op:?}");
            assert!(operation["responses"].get("403").is_some(), "{op:?}");
            assert_eq!(operation["x-place"], route.place.name(), "{op:?}");
            let part = operation.get("x-named-by").map(|part| part.as_str().unwrap());
            match route.place {
                Place::Named(wanted) | Place::Holder(wanted) => {
                    assert_eq!(part, Some(wanted), "{op:?}");
                    assert!(has_part(&document, operation, wanted), "{op:?} has no {wanted}");
                }
                _ => assert_eq!(part, None, "{op:?}"),
            }
            assert_eq!(operation.get("x-task").and_then(Value::as_str), route.task, "{op:?}");
            let described = document["info"]["description"].as_str().unwrap();
            for word in [route.role.name(), route.place.name()] {
                assert!(described.contains(&format!("{word} (")) || word == "all", "{word}");
            }
        }
    }

    #[test]
    fn every_schema_is_an_object_or_an_enumeration_with_a_description() {
        let document = document("1.2.3");
        for (name, schema) in document["components"]["schemas"].as_object().unwrap() {
            let kind = schema["type"].as_str().unwrap_or_else(|| panic!("{name}: no type"));
            assert!(kind == "object" || (kind == "string" && schema["enum"].is_array()), "{name}");
            if !name.ends_with("Item") && !name.ends_with("List") {
                assert!(schema["description"].is_string(), "{name} is not described");
            }
            for required in schema["required"].as_array().into_iter().flatten() {
                let field = required.as_str().unwrap();
                assert!(schema["properties"].get(field).is_some(), "{name}.{field}");
            }
        }
    }
}
