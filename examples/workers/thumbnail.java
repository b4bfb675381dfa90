// A worker of waterwheel that serves the kind `thumbnail`. It needs Java 17 and nothing else.
//
//   waterwheel worker test -- java thumbnail.java     checks that it keeps the protocol
//   waterwheel dev --worker thumbnail.java            serves it, and starts it anew when this file changes
//
// Load what is slow to load (a model, a connection) in main, once. It is kept from job to job.

import java.io.*;
import java.nio.charset.StandardCharsets;
import java.util.*;
import java.util.concurrent.*;

class Worker {
    /** Does one job. */
    static Result run(Job job) throws Exception {
        return new Result(job.payload, job.contentType);
    }

    /** What `waterwheel worker test` asks for. It shows all that a handler can do; yours may do without it. */
    static Result conformance(Job job) throws Exception {
        switch (job.labels.getOrDefault("task", "")) {
            case "chunks" -> {
                for (int number = 0; number < 3; number++) job.output((number + "\n").getBytes());
                return new Result("end\n".getBytes(), "text/plain");
            }
            case "progress" -> job.progress(0.5, "half of it");
            case "fail" -> throw new Failed("NOT_FOUND", "no such picture", null);
            case "wait" -> throw new Failed("CANCELLED", "stopped because of " + job.cancelled.get(), null);
            case "print" -> System.out.println("a line on standard output");
            case "crash" -> Runtime.getRuntime().halt(3);
            default -> { }
        }
        return new Result(job.payload, job.contentType);
    }

    static final Map<String, Handler> KINDS = Map.of("thumbnail", Worker::run, "conformance", Worker::conformance);

    interface Handler {
        Result run(Job job) throws Exception;
    }

    record Result(byte[] data, String contentType) { }

    /** Ends a job with a gRPC status code. Any other exception ends it with INTERNAL. */
    static class Failed extends Exception {
        final String code;
        final Boolean retryable; // null: as the code says

        Failed(String code, String message, Boolean retryable) {
            super(message);
            this.code = code;
            this.retryable = retryable;
        }
    }

    static class Job {
        final String id, jobId, kind, contentType, requestId, tenant;
        final Map<String, String> labels;
        final long budgetMs;
        final byte[] payload;
        /** Why the job is to stop, as soon as it is. */
        final CompletableFuture<String> cancelled = new CompletableFuture<>();

        @SuppressWarnings("unchecked")
        Job(Map<String, Object> header, byte[] payload) {
            id = (String) header.get("id");
            jobId = (String) header.get("job_id");
            kind = (String) header.get("kind");
            contentType = (String) header.getOrDefault("content_type", "");
            requestId = (String) header.getOrDefault("request_id", "");
            tenant = (String) header.getOrDefault("tenant", "");
            labels = (Map<String, String>) header.getOrDefault("labels", Map.of());
            budgetMs = ((Number) header.getOrDefault("budget_ms", 0)).longValue();
            this.payload = payload;
        }

        /** Sends a piece of the result now, which a caller of `Stream` gets as a chunk. */
        void output(byte[] piece) throws IOException {
            send("output", "\"id\":" + quoted(id), piece);
        }

        void progress(double fraction, String message) throws IOException {
            send("progress", "\"id\":" + quoted(id) + ",\"fraction\":" + fraction + ",\"message\":" + quoted(message), NONE);
        }
    }

    // The protocol: a line of JSON on descriptor 3 or 4, then as many bytes as its `bytes` says.
    static final byte[] NONE = {};
    static final Map<String, Job> RUNNING = new ConcurrentHashMap<>();
    static InputStream requests;
    static OutputStream responses;

    static synchronized void send(String name, String fields, byte[] data) throws IOException {
        String line = "{" + quoted(name) + ":{" + fields + "},\"bytes\":" + data.length + "}\n";
        responses.write(line.getBytes(StandardCharsets.UTF_8));
        responses.write(data);
        responses.flush();
    }

    static void serve(Job job) {
        String code = "INTERNAL", message;
        Boolean retryable = null;
        try {
            Handler handler = KINDS.get(job.kind);
            if (handler == null) throw new Failed("UNIMPLEMENTED", "no handler for the kind " + job.kind, null);
            Result result = handler.run(job);
            RUNNING.remove(job.id);
            send("done", "\"id\":" + quoted(job.id) + ",\"content_type\":" + quoted(result.contentType), result.data);
            return;
        } catch (Failed failed) {
            code = failed.code;
            message = failed.getMessage();
            retryable = failed.retryable;
        } catch (Throwable error) {
            error.printStackTrace();
            message = error.toString();
        }
        RUNNING.remove(job.id);
        message = String.valueOf(message);
        message = message.substring(0, Math.min(message.length(), 2000));
        String said = ",\"code\":" + quoted(code) + ",\"message\":" + quoted(message) + ",\"retryable\":" + retryable;
        try {
            send("failed", "\"id\":" + quoted(job.id) + said, NONE);
        } catch (IOException gone) {
            System.exit(0);
        }
    }

    @SuppressWarnings("unchecked")
    public static void main(String[] args) throws Exception {
        requests = new BufferedInputStream(new FileInputStream("/proc/self/fd/3"), 1 << 16);
        responses = new BufferedOutputStream(new FileOutputStream("/proc/self/fd/4"), 1 << 16);
        ExecutorService threads = Executors.newCachedThreadPool();
        StringJoiner kinds = new StringJoiner(",");
        KINDS.keySet().forEach(kind -> kinds.add(quoted(kind)));
        send("ready", "\"protocol\":1,\"kinds\":[" + kinds + "],\"name\":\"thumbnail\"", NONE);
        for (String line; (line = line()) != null; ) {
            Map<String, Object> message = (Map<String, Object>) new Json(line).value();
            byte[] data = requests.readNBytes(((Number) message.getOrDefault("bytes", 0)).intValue());
            Map<String, Object> cancel = (Map<String, Object>) message.get("cancel");
            if (message.get("run") instanceof Map<?, ?> header) {
                Job job = new Job((Map<String, Object>) header, data);
                RUNNING.put(job.id, job);
                threads.execute(() -> serve(job));
            } else if (cancel != null) {
                Job job = RUNNING.get(cancel.get("id"));
                if (job != null) job.cancelled.complete((String) cancel.get("reason"));
            } else if (message.containsKey("leave")) {
                threads.shutdown();
                new Thread(() -> {
                    try {
                        threads.awaitTermination(1, TimeUnit.DAYS);
                    } catch (InterruptedException ignored) { }
                    System.exit(0);
                }).start();
            }
        }
        Runtime.getRuntime().halt(0); // The service is gone.
    }

    static String line() throws IOException {
        ByteArrayOutputStream line = new ByteArrayOutputStream();
        for (int next; (next = requests.read()) != '\n'; line.write(next)) if (next < 0) return null;
        return line.toString(StandardCharsets.UTF_8);
    }

    static String quoted(String text) {
        StringBuilder quoted = new StringBuilder("\"");
        for (char c : String.valueOf(text).toCharArray())
            quoted.append(c < ' ' || c == '"' || c == '\\' ? String.format("\\u%04x", (int) c) : c);
        return quoted.append('"').toString();
    }

    /** Reads JSON, of which the JDK has no reader: objects, lists, texts, numbers, true, false and null. */
    static class Json {
        final String text;
        int at;

        Json(String text) {
            this.text = text;
        }

        Object value() {
            char first = next();
            if (first == '{') {
                Map<String, Object> fields = new HashMap<>();
                while (peek() != '}') {
                    String name = (String) value();
                    next();
                    fields.put(name, value());
                    if (peek() == ',') next();
                }
                next();
                return fields;
            }
            if (first == '[') {
                List<Object> items = new ArrayList<>();
                while (peek() != ']') {
                    items.add(value());
                    if (peek() == ',') next();
                }
                next();
                return items;
            }
            if (first == '"') return string();
            int start = at - 1;
            while (at < text.length() && ",]} \t\r\n".indexOf(text.charAt(at)) < 0) at++;
            String word = text.substring(start, at);
            return switch (word) {
                case "true" -> true;
                case "false" -> false;
                case "null" -> null;
                default -> Double.valueOf(word);
            };
        }

        String string() {
            StringBuilder string = new StringBuilder();
            for (char c; (c = text.charAt(at++)) != '"'; ) {
                if (c == '\\') {
                    c = text.charAt(at++);
                    if (c == 'u') {
                        c = (char) Integer.parseInt(text.substring(at, at += 4), 16);
                    } else {
                        int escape = "bfnrt".indexOf(c);
                        c = escape < 0 ? c : "\b\f\n\r\t".charAt(escape);
                    }
                }
                string.append(c);
            }
            return string.toString();
        }

        char peek() {
            while (Character.isWhitespace(text.charAt(at))) at++;
            return text.charAt(at);
        }

        char next() {
            char next = peek();
            at++;
            return next;
        }
    }
}
