//! The OpenAPI document of calls by HTTP and JSON, from the descriptors of the contract and their comments.

use std::collections::{BTreeMap, HashMap};

use prost_reflect::{EnumDescriptor, FieldDescriptor, FileDescriptor, Kind, MessageDescriptor, MethodDescriptor};
use serde_json::{Map, Value, json};

use super::{edge::is_read_only, reflection::DESCRIPTORS};

/// The document of the whole contract, of which each listener serves a part.
#[must_use]
pub fn contract() -> Value {
    let services = DESCRIPTORS.services().filter(|service| service.full_name().starts_with("waterwheel."));
    let methods = services.flat_map(|service| service.methods().collect::<Vec<_>>());
    document(&methods.filter(|method| method.name() != "Attach").collect::<Vec<_>>())
}

/// The document of these methods.
pub(super) fn document(methods: &[MethodDescriptor]) -> Value {
    let mut schemas = Schemas::default();
    let paths: Map<_, _> = methods.iter().map(|method| (path(method), schemas.operations(method))).collect();
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "waterwheel",
            "version": env!("CARGO_PKG_VERSION"),
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
            "description": "Calls by HTTP and JSON, in the form of the Connect protocol: docs/calling.md.",
        },
        "servers": [{ "url": "/" }],
        "security": [{}, { "token": [] }],
        "paths": paths,
        "components": {
            "schemas": schemas.all(),
            "responses": {
                "Error": { "description": "An error.", "content": content("application/json", reference(ERROR)) },
            },
            "parameters": parameters(),
            "securitySchemes": { "token": { "type": "http", "scheme": "bearer" } },
        },
    })
}

fn path(method: &MethodDescriptor) -> String {
    format!("/{}/{}", method.parent_service().full_name(), method.name())
}

/// Headers of all calls, which no message has.
fn parameters() -> Value {
    let header = |name, schema, text| json!({ "in": "header", "name": name, "schema": schema, "description": text });
    let timeout = json!({ "type": "string", "pattern": "^[0-9]{1,10}$" });
    let id = json!({ "type": "string", "pattern": "^[!-~]{1,128}$" });
    json!({
        "Timeout": header("connect-timeout-ms", timeout, "The deadline of the call, in milliseconds from its start."),
        "RequestId": header("x-request-id", id, "The id of the call in logs and traces. The answer has it, too."),
    })
}

/// Name of the schema of errors.
const ERROR: &str = "Error";

/// The schema of errors.
fn error() -> Value {
    json!({
        "type": "object",
        "required": ["code"],
        "properties": {
            "code": { "type": "string", "description": "The code of gRPC in lower case.", "examples": ["aborted"] },
            "message": { "type": "string" },
            "details": {
                "type": "array",
                "description": "The first one has the reason.",
                "items": {
                    "type": "object",
                    "required": ["type", "value"],
                    "properties": {
                        "type": { "type": "string", "examples": ["google.rpc.ErrorInfo"] },
                        "value": { "type": "string", "contentEncoding": "base64" },
                        "debug": { "type": "object", "description": "The same in JSON." },
                    },
                },
            },
        },
    })
}

fn reference(name: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{name}") })
}

fn content(media_type: &str, schema: Value) -> Value {
    json!({ media_type: { "schema": schema } })
}

/// The schemas of messages and enums, as far as methods use them.
#[derive(Default)]
struct Schemas {
    found: BTreeMap<String, Value>,
    comments: HashMap<String, Comments>,
}

/// The comments of a file, by the paths of what they are about.
type Comments = HashMap<Vec<i32>, String>;

impl Schemas {
    fn all(mut self) -> Value {
        self.found.insert(ERROR.to_owned(), error());
        self.found.into_iter().collect()
    }

    /// The operations of a method, by the methods of HTTP.
    fn operations(&mut self, method: &MethodDescriptor) -> Value {
        let service = method.parent_service();
        let input = self.message(&method.input());
        let output = self.message(&method.output());
        let (media_type, form) = match (method.is_client_streaming(), method.is_server_streaming()) {
            (false, false) => ("application/json", ""),
            (false, true) => ("application/x-ndjson", "Each line is a message; one `{\"error\": …}` is the last."),
            (true, _) => ("application/connect+json", "Envelopes of Connect, each with a message."),
        };
        let asked = if method.is_client_streaming() { media_type } else { "application/json" };
        let answered = if form.is_empty() { "The answer." } else { form };
        let mut operation = json!({
            "operationId": format!("{}.{}", service.name(), method.name()),
            "tags": [service.name()],
            "description": self.comment(&service.parent_file(), method.path()),
            "parameters": [
                { "$ref": "#/components/parameters/Timeout" },
                { "$ref": "#/components/parameters/RequestId" },
            ],
            "responses": {
                "200": { "description": answered, "content": content(media_type, output) },
                "default": { "$ref": "#/components/responses/Error" },
            },
        });
        let mut operations = json!({});
        if is_read_only(method) {
            let mut get = operation.clone();
            get["operationId"] = format!("{}.{}.get", service.name(), method.name()).into();
            let message = content("application/json", input.clone());
            get["parameters"] = json!([
                { "in": "query", "name": "encoding", "required": true, "schema": { "const": "json" } },
                { "in": "query", "name": "message", "required": true, "content": message },
            ]);
            operations["get"] = get;
        }
        operation["requestBody"] = json!({ "required": true, "content": content(asked, input) });
        operations["post"] = operation;
        operations
    }

    /// A reference to the schema of a message.
    fn message(&mut self, message: &MessageDescriptor) -> Value {
        let name = message.full_name();
        match name {
            "google.protobuf.Timestamp" => return json!({ "type": "string", "format": "date-time" }),
            "google.protobuf.Duration" => {
                return json!({ "type": "string", "pattern": "^-?[0-9]+(\\.[0-9]{1,9})?s$", "examples": ["1.5s"] });
            }
            "google.protobuf.Any" => {
                let kind = json!({ "@type": { "type": "string" } });
                return json!({ "type": "object", "required": ["@type"], "properties": kind });
            }
            _ => {}
        }
        if !self.found.contains_key(name) {
            // Messages may contain themselves.
            self.found.insert(name.to_owned(), Value::Null);
            let fields = message.fields().map(|field| (field.json_name().to_owned(), self.field(&field)));
            let properties: Map<_, _> = fields.collect();
            let text = self.comment(&message.parent_file(), message.path());
            let closed = json!({ "type": "object", "description": text, "properties": properties });
            self.found.insert(name.to_owned(), closed);
        }
        reference(name)
    }

    fn field(&mut self, field: &FieldDescriptor) -> Value {
        let mut schema = if let (true, Kind::Message(entry)) = (field.is_map(), field.kind()) {
            json!({ "type": "object", "additionalProperties": self.value(&entry.map_entry_value_field().kind()) })
        } else if field.is_list() {
            json!({ "type": "array", "items": self.value(&field.kind()) })
        } else {
            self.value(&field.kind())
        };
        let mut text = self.comment(&field.parent_message().parent_file(), field.path());
        if let Some(oneof) = field.containing_oneof().filter(|oneof| oneof.fields().len() > 1) {
            let others = oneof.fields().filter(|other| other != field).map(|other| format!("`{}`", other.json_name()));
            text += &format!("\nNot together with {}.", others.collect::<Vec<_>>().join(", "));
        }
        schema["description"] = text.trim().into();
        schema
    }

    fn value(&mut self, kind: &Kind) -> Value {
        match kind {
            Kind::Double | Kind::Float => json!({ "type": "number" }),
            Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => json!({ "type": "integer", "format": "int32" }),
            Kind::Uint32 | Kind::Fixed32 => json!({ "type": "integer", "minimum": 0, "maximum": u32::MAX }),
            // Answers have them as texts, because numbers of JSON are exact only up to 2⁵³.
            Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 | Kind::Uint64 | Kind::Fixed64 => {
                json!({ "type": ["string", "integer"], "pattern": "^-?[0-9]+$" })
            }
            Kind::Bool => json!({ "type": "boolean" }),
            Kind::String => json!({ "type": "string" }),
            Kind::Bytes => json!({ "type": "string", "contentEncoding": "base64" }),
            Kind::Message(message) => self.message(message),
            Kind::Enum(of) => self.named_values(of),
        }
    }

    /// A reference to the schema of an enum.
    fn named_values(&mut self, of: &EnumDescriptor) -> Value {
        let mut text = self.comment(&of.parent_file(), of.path());
        for value in of.values() {
            let about = self.comment(&of.parent_file(), value.path());
            text += &format!("\n- `{}`: {}", value.name(), about.replace('\n', " "));
        }
        let names: Vec<_> = of.values().map(|value| value.name().to_owned()).collect();
        self.found.insert(of.full_name().to_owned(), json!({ "type": "string", "enum": names, "description": text }));
        reference(of.full_name())
    }

    /// The comment above a part of a file.
    fn comment(&mut self, file: &FileDescriptor, path: &[i32]) -> String {
        let comments = self.comments.entry(file.name().to_owned()).or_insert_with(|| comments(file));
        comments.get(path).cloned().unwrap_or_default()
    }
}

fn comments(file: &FileDescriptor) -> Comments {
    let info = file.file_descriptor_proto().source_code_info.clone().unwrap_or_default();
    let lines = |text: &str| text.lines().map(str::trim).collect::<Vec<_>>().join("\n").trim().to_owned();
    let commented = info.location.into_iter().filter_map(|at| Some((at.path, lines(at.leading_comments.as_deref()?))));
    commented.collect()
}
