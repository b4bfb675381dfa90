//! The page for people, at `/`: files that the browser gets once, and then calls by JSON. docs/page.md is about it.
//!
//! The server writes a table of the pools into the document, so that it says something without its script, too.

use std::{
    fmt::Write as _,
    io::Write as _,
    sync::{Arc, LazyLock},
};

use axum::{
    Router,
    extract::State,
    response::{IntoResponse, Response},
    routing::get,
};
use bytes::Bytes;
use flate2::{Compression, write::GzEncoder};
use http::{
    HeaderMap, HeaderValue, StatusCode,
    header::{
        ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, HeaderName,
        IF_NONE_MATCH, REFERRER_POLICY, VARY, X_CONTENT_TYPE_OPTIONS,
    },
};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use super::{OpsState, lower};
use crate::{model::Reason, pool::Pool};

/// What the page may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PageMode {
    /// It shows what is there. The server refuses calls of pages that change something.
    Read,
    /// It also has buttons for what operators do.
    Act,
    /// There is no page.
    Off,
}

/// Addresses of the views, which all get the document. One that ends in a slash stands for all below it.
const VIEWS: [&str; 9] = ["/", "/jobs", "/job/", "/dead", "/workers", "/pool/", "/kind/", "/tenants", "/backlog"];

macro_rules! files {
    ($($name:literal)+) => {
        [$(File { path: concat!("/", $name), text: include_bytes!(concat!("page/", $name)) }),+]
    };
}

/// A file of the page.
struct File {
    path: &'static str,
    text: &'static [u8],
}

const FILES: [File; 19] = files! {
    "icon.svg" "page.css" "views.css" "page.js" "acts.js" "addresses.js" "backlog.js" "charts.js" "dead.js" "elements.js"
    "figures.js" "header.js" "job.js" "jobs.js" "overview.js" "pools.js" "rights.js" "words.js" "workers.js"
};

/// Words for reasons, from the table of the server.
const REASONS: &str = "/reasons.js";

const DOCUMENT: &str = include_str!("page/index.html");

/// Nothing of another host, nothing inline, and in no frame.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'self'; frame-ancestors 'none'";

/// Paths of the page.
pub(super) fn paths() -> impl Iterator<Item = &'static str> {
    VIEWS.into_iter().chain(FILES.iter().map(|file| file.path)).chain([REASONS])
}

/// Adds the page to the routes.
pub(super) fn add(mode: PageMode, mut router: Router<Arc<OpsState>>) -> Router<Arc<OpsState>> {
    for view in VIEWS {
        let path = if view.len() > 1 && view.ends_with('/') { format!("{view}{{*id}}") } else { view.to_owned() };
        router = router.route(&path, get(move |state| document(mode, state)));
    }
    for (path, text) in FILES.iter().map(|file| (file.path, file.text)) {
        router = router.route(path, get(file(path, move || text.into())));
    }
    router.route(REASONS, get(file(REASONS, || reasons().into())))
}

/// A module with the words of the reasons for refusals and failures, by name.
fn reasons() -> String {
    let words = Reason::ALL.iter().map(|reason| (reason.name().to_owned(), reason.words().into()));
    format!("export const REASONS = {};\n", Value::Object(words.collect::<Map<_, _>>()))
}

/// Answers with a text, which is compressed when it is first asked for.
fn file(
    path: &'static str,
    text: impl Fn() -> Bytes + Send + Sync + 'static,
) -> impl Fn(HeaderMap) -> std::future::Ready<Response> + Clone + Send + Sync + 'static {
    let kept = Arc::new(LazyLock::new(move || Kept::new(path, text())));
    move |headers| std::future::ready(kept.answer(&headers))
}

/// A file, as it is sent.
struct Kept {
    media_type: &'static str,
    tag: HeaderValue,
    text: Bytes,
    compressed: Bytes,
}

impl Kept {
    fn new(path: &str, text: Bytes) -> Self {
        let media_type = match path.rsplit('.').next() {
            Some("js") => "text/javascript; charset=utf-8",
            Some("css") => "text/css; charset=utf-8",
            _ => "image/svg+xml",
        };
        let digest: String = Sha256::digest(&text)[..8].iter().map(|byte| format!("{byte:02x}")).collect();
        let tag = HeaderValue::try_from(format!("\"{digest}\"")).expect("digits are valid in a header");
        let mut gzip = GzEncoder::new(Vec::new(), Compression::best());
        // A vector takes all that is written.
        let compressed = gzip.write_all(&text).and_then(|()| gzip.finish()).unwrap_or_default().into();
        Self { media_type, tag, text, compressed }
    }

    fn answer(&self, asked: &HeaderMap) -> Response {
        let has = |name: HeaderName, wanted: &str| {
            asked.get_all(name).iter().filter_map(|value| value.to_str().ok()).any(|value| value.contains(wanted))
        };
        let headers = [(ETAG, self.tag.clone()), (CACHE_CONTROL, HeaderValue::from_static("no-cache"))];
        if has(IF_NONE_MATCH, self.tag.to_str().unwrap_or_default()) {
            return (StatusCode::NOT_MODIFIED, headers).into_response();
        }
        let plain = [(CONTENT_TYPE, self.media_type), (X_CONTENT_TYPE_OPTIONS, "nosniff"), (VARY, "accept-encoding")];
        if has(ACCEPT_ENCODING, "gzip") && !self.compressed.is_empty() {
            return (headers, plain, [(CONTENT_ENCODING, "gzip")], self.compressed.clone()).into_response();
        }
        (headers, plain, self.text.clone()).into_response()
    }
}

/// The document of all views, with what the server knows about its pools.
async fn document(mode: PageMode, State(state): State<Arc<OpsState>>) -> Response {
    let rows: String = state.pools.all().iter().map(row).collect();
    let text = DOCUMENT
        .replacen("{mode}", &lower(mode), 1)
        .replacen("{phase}", &lower(state.phase.get()), 1)
        .replacen("{time}", &jiff::Timestamp::now().strftime("%H:%M:%S").to_string(), 1)
        .replacen("{pools}", &rows, 1);
    let headers = [
        (CONTENT_TYPE, "text/html; charset=utf-8"),
        (CACHE_CONTROL, "no-store"),
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
    ];
    (headers, text).into_response()
}

/// The row of a pool.
fn row(pool: &Pool) -> String {
    let stats = pool.stats();
    let state = if stats.paused.is_some() { "paused".to_owned() } else { lower(stats.phase) };
    let mut row = format!("<tr><th scope=\"row\">{}</th><td>{}</td>", escaped(pool.name()), escaped(&state));
    let workers = stats.workers.len();
    let figures = [
        format!("{} / {workers}", stats.in_flight),
        format!("{} / {}", stats.queued, stats.queue_jobs),
        format!("{} ms", stats.expected_wait.as_millis()),
    ];
    for figure in figures {
        // A string takes all that is written.
        let _ = write!(row, "<td class=\"n\">{figure}</td>");
    }
    row + "</tr>"
}

/// A text for HTML.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_small_and_names_no_other_host() {
        let all: usize = FILES.iter().map(|file| file.text.len()).sum::<usize>() + DOCUMENT.len() + reasons().len();
        assert!(all <= 150 << 10, "{all} bytes");
        for File { path, text } in FILES {
            let text = str::from_utf8(text).unwrap().replace("http://www.w3.org/2000/svg", "");
            assert!(!text.contains("http:") && !text.contains("https:") && !text.contains("innerHTML"), "{path}");
            for (line, text) in (1..).zip(text.lines()) {
                assert!(text.chars().count() <= 120, "{path}:{line} is longer than 120 columns");
            }
            assert!(text.lines().count() <= 400, "{path} is longer than 400 lines");
        }
    }

    #[test]
    fn names_are_text() {
        assert_eq!(escaped("<b>\"&"), "&lt;b&gt;&quot;&amp;");
    }
}
