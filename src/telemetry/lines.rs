use std::fmt::{self, Debug, Write};

use crate::handler::{Context, identity};

use tracing::{
    Event, Level, Subscriber,
    field::{Field, Visit},
    span::Record,
};
use tracing_subscriber::{
    field::RecordFields,
    fmt::{
        FmtContext, FormatEvent, FormatFields, FormattedFields,
        format::Writer,
        time::{FormatTime, SystemTime},
    },
    registry::LookupSpan,
};

/// Fields of a span as log lines need them, one `"name":value` of JSON for each line of text.
///
/// They are written once, when the span is made, and copied into each line. Names that only exporters need are left
/// out.
#[derive(Debug)]
pub(super) struct SpanFields;

/// Writes an event as one line. The fields of the event come first, then those of the spans that it is in, the
/// innermost first; of fields with the same name, only the first.
#[derive(Debug, Clone, Copy)]
pub(super) enum Lines {
    /// `<timestamp> <level> <target>: <message> <name>=<value>…`
    Text,
    /// One flat JSON object.
    Json,
}

/// Fields of our own spans that say nothing that a line of log needs.
const FOR_EXPORTERS: [&str; 6] = [
    "rpc.system",
    "rpc.service",
    "rpc.method",
    "rpc.status_code",
    "messaging.operation.type",
    "messaging.destination.name",
];

impl<'writer> FormatFields<'writer> for SpanFields {
    fn format_fields<R: RecordFields>(&self, mut writer: Writer<'writer>, fields: R) -> fmt::Result {
        // Room for a request id; the copy is of the exact length.
        let mut text = String::with_capacity(64);
        let mut pairs = Pairs { out: &mut text, message: None, result: Ok(()) };
        fields.record(&mut pairs);
        pairs.result?;
        writer.write_str(&text)
    }

    fn add_fields(&self, current: &'writer mut FormattedFields<Self>, fields: &Record<'_>) -> fmt::Result {
        self.format_fields(current.as_writer(), fields)
    }
}

impl<S> FormatEvent<S, SpanFields> for Lines
where
    S: Subscriber + for<'lookup> LookupSpan<'lookup>,
{
    fn format_event(
        &self,
        ctx: &FmtContext<'_, S, SpanFields>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let (mut message, mut own) = (String::new(), String::new());
        let mut pairs = Pairs { out: &mut own, message: Some(&mut message), result: Ok(()) };
        event.record(&mut pairs);
        pairs.result?;
        let metadata = event.metadata();
        let mut line = Line { format: *self, seen: Vec::new(), text: String::with_capacity(256) };
        line.head(writer.has_ansi_escapes(), *metadata.level(), metadata.target(), &message)?;
        line.pairs(&own)?;
        for span in ctx.event_scope().into_iter().flatten() {
            if let Some(fields) = span.extensions().get::<FormattedFields<SpanFields>>() {
                line.pairs(&fields.fields)?;
            }
        }
        let identity = identity::current(|cx| line.identity(cx));
        identity.unwrap_or(Ok(()))?;
        line.end();
        writer.write_str(&line.text)
    }
}

struct Line {
    format: Lines,
    seen: Vec<String>,
    text: String,
}

impl Line {
    fn head(&mut self, ansi: bool, level: Level, target: &str, message: &str) -> fmt::Result {
        let text = &mut self.text;
        match self.format {
            Lines::Json => {
                text.push_str(r#"{"timestamp":""#);
                SystemTime.format_time(&mut Writer::new(text))?;
                write!(text, r#"","level":"{level}","target":"#)?;
                quote(text, target)?;
                text.push_str(r#","message":"#);
                quote(text, message)?;
                self.seen.extend(["timestamp", "level", "target", "message"].map(String::from));
            }
            Lines::Text => {
                SystemTime.format_time(&mut Writer::new(text))?;
                let color = match level {
                    Level::ERROR => 31,
                    Level::WARN => 33,
                    Level::INFO => 32,
                    Level::DEBUG => 34,
                    Level::TRACE => 35,
                };
                if ansi {
                    write!(text, " \x1b[{color}m{level:>5}\x1b[0m {target}: ")?;
                } else {
                    write!(text, " {level:>5} {target}: ")?;
                }
                for character in message.chars() {
                    if character.is_control() {
                        write!(text, "{}", character.escape_default())?;
                    } else {
                        text.push(character);
                    }
                }
            }
        }
        Ok(())
    }

    fn pairs(&mut self, pairs: &str) -> fmt::Result {
        for pair in pairs.lines() {
            let Some((name, value)) = pair.strip_prefix('"').and_then(|pair| pair.split_once("\":")) else { continue };
            if self.seen.iter().any(|seen| seen == name) {
                continue;
            }
            self.seen.push(name.to_owned());
            match self.format {
                Lines::Json => write!(self.text, ",{pair}")?,
                Lines::Text => write!(self.text, " {name}={}", unquoted(value))?,
            }
        }
        Ok(())
    }

    /// What no field and no span has said of the job.
    fn identity(&mut self, cx: &Context) -> fmt::Result {
        let mut pairs = String::with_capacity(128);
        string(&mut pairs, "request_id", cx.request_id().as_str())?;
        string(&mut pairs, "job", &cx.job().to_string())?;
        string(&mut pairs, "kind", cx.kind())?;
        string(&mut pairs, "pool", cx.pool())?;
        if let Some(start) = cx.start() {
            writeln!(pairs, "\"worker\":{}", start.worker)?;
        }
        self.pairs(&pairs)
    }

    fn end(&mut self) {
        self.text.push_str(match self.format {
            Lines::Json => "}\n",
            Lines::Text => "\n",
        });
    }
}

/// A JSON value as a person reads it: a string that is one plain word loses its quotes.
fn unquoted(value: &str) -> &str {
    let inner = value.strip_prefix('"').and_then(|value| value.strip_suffix('"')).unwrap_or(value);
    let plain = !inner.is_empty() && !inner.contains(|c: char| c.is_whitespace() || "\"\\=".contains(c));
    if plain { inner } else { value }
}

fn quote(out: &mut dyn Write, text: &str) -> fmt::Result {
    // The common case, an id or a name, needs no escape.
    if text.bytes().all(|byte| byte >= b' ' && byte != b'"' && byte != b'\\' && byte != 0x7f) {
        out.write_char('"')?;
        out.write_str(text)?;
        return out.write_char('"');
    }
    out.write_str(&serde_json::to_string(text).map_err(|_| fmt::Error)?)
}

fn string(out: &mut dyn Write, name: &str, value: &str) -> fmt::Result {
    out.write_char('"')?;
    out.write_str(name)?;
    out.write_str("\":")?;
    quote(out, value)?;
    out.write_char('\n')
}

/// Writes fields as pairs.
struct Pairs<'out> {
    out: &'out mut dyn Write,
    /// Takes the message of an event; a span has none, and leaves out what only exporters need.
    message: Option<&'out mut String>,
    result: fmt::Result,
}

impl Pairs<'_> {
    fn put(&mut self, field: &Field, write: impl FnOnce(&mut dyn Write, &str) -> fmt::Result) {
        let name = field.name();
        let left_out = self.message.is_none() && (name.starts_with("otel.") || FOR_EXPORTERS.contains(&name));
        if self.result.is_ok() && !left_out {
            self.result = write(self.out, name);
        }
    }

    fn message(&mut self, field: &Field) -> Option<&mut String> {
        self.message.as_deref_mut().filter(|_| field.name() == "message")
    }
}

impl Visit for Pairs<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        match self.message(field) {
            Some(message) => message.push_str(value),
            None => self.put(field, |out, name| string(out, name, value)),
        }
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, |out, name| writeln!(out, "\"{name}\":{value}"));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, |out, name| writeln!(out, "\"{name}\":{value}"));
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        // JSON has no number that is not finite.
        let quote = if value.is_finite() { "" } else { "\"" };
        self.put(field, |out, name| writeln!(out, "\"{name}\":{quote}{value}{quote}"));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, |out, name| writeln!(out, "\"{name}\":{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.record_str(field, &format!("{value:?}"));
    }
}

#[cfg(test)]
mod tests {
    use tracing::{info, info_span, warn};
    use tracing_subscriber::{fmt::layer, layer::SubscriberExt};

    use super::*;
    use crate::telemetry::capture::Capture;

    fn lines(format: Lines, act: impl FnOnce()) -> Vec<String> {
        let capture = Capture::default();
        let fmt = layer().fmt_fields(SpanFields).event_format(format).with_ansi(false).with_writer(capture.clone());
        tracing::subscriber::with_default(tracing_subscriber::registry().with(fmt), act);
        capture.lines()
    }

    fn in_spans() {
        let call = info_span!(
            "call",
            request_id = "r-1",
            rpc.method = "Submit",
            otel.kind = "server",
            late = tracing::field::Empty
        );
        let run =
            info_span!(parent: &call, "process", request_id = "r-1", job = %"a-1", worker = 3_u32, share = f64::NAN);
        call.record("late", true);
        run.in_scope(|| warn!(worker = 9, size_bytes = 12_u64, odd = "a \"b\"\n", "two\nlines"));
    }

    #[test]
    fn json_is_flat_and_the_innermost_name_wins() {
        let line = lines(Lines::Json, in_spans).pop().expect("one line");
        let mut object: serde_json::Map<String, serde_json::Value> = serde_json::from_str(&line).expect("JSON");
        let stamp = object.remove("timestamp").expect("timestamp");
        assert!(stamp.as_str().is_some_and(|stamp| stamp.ends_with('Z') && stamp.len() == 27), "{stamp}");
        let expected = serde_json::json!({
            "level": "WARN", "target": module_path!(), "message": "two\nlines", "worker": 9, "size_bytes": 12,
            "odd": "a \"b\"\n", "request_id": "r-1", "job": "a-1", "share": "NaN", "late": true,
        });
        assert_eq!(serde_json::Value::Object(object), expected);
        assert_eq!(line.matches("request_id").count(), 1);
    }

    #[test]
    fn text_is_one_line_that_nobody_can_forge() {
        let line = lines(Lines::Text, in_spans).pop().expect("one line");
        let rest = line.split_once(' ').expect("timestamp").1;
        let expected = format!(
            " WARN {}: two\\nlines worker=9 size_bytes=12 odd=\"a \\\"b\\\"\\n\" request_id=r-1 job=a-1 share=NaN late=true",
            module_path!()
        );
        assert_eq!(rest, expected);
    }

    #[test]
    fn no_span_no_message() {
        let line = lines(Lines::Json, || info!(a = 1)).pop().expect("one line");
        assert!(line.ends_with(r#""message":"","a":1}"#), "{line}");
    }
}
