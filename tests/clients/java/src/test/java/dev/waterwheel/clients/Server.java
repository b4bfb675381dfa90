package dev.waterwheel.clients;

import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.waterwheel.v1.WorkerPoolServiceGrpc;
import dev.waterwheel.v1.WorkerPoolServiceGrpc.WorkerPoolServiceBlockingV2Stub;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannel;
import java.io.IOException;
import java.nio.file.Files;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.regex.Pattern;

/** A waterwheel process with its own configuration and ports, and the channels to it. */
final class Server implements AutoCloseable {
  /** Bounds every wait for something that must happen; a busy machine needs most of it. */
  static final int PATIENCE_SECONDS = 20;

  /** The program under test. */
  static final String BINARY = System.getenv().getOrDefault("WATERWHEEL_BIN", "../../../target/debug/waterwheel");

  /** A server as many will run it. */
  static final String EVERYDAY =
      """
      pool.cpu.workers = 2
      kind.sha256 = { pool = "cpu", builtin = "sha256" }
      kind.gzip = { pool = "cpu", builtin = "gzip" }
      kind.sleep = { pool = "io", builtin = "sleep" }
      kind.echo = { pool = "io", builtin = "echo" }
      [pool.io]
      workers = 8
      when_full = "wait"
      """;

  /** A server with room for two jobs at a time. */
  static final String TINY =
      """
      kind.echo = { pool = "tiny", builtin = "echo" }
      kind.sleep = { pool = "tiny", builtin = "sleep" }
      [server]
      max_payload = "1MiB"
      [pool.tiny]
      workers = 1
      queue = { jobs = 1 }
      when_full = "reject"
      """;

  /**
   * A server with one worker. It answers 50 ms early: on a busy machine the default of 10 ms would measure the machine.
   */
  static final String IMPATIENT =
      """
      pool.one.workers = 1
      kind.sleep = { pool = "one", builtin = "sleep" }
      [deadline]
      reply_margin = "50ms"
      """;

  private static final Pattern ANNOUNCEMENT = Pattern.compile("grpc (\\S+) .*");

  final String address;
  private final Process process;
  private final List<ManagedChannel> channels = new ArrayList<>();

  private Server(Process process) throws IOException {
    this.process = process;
    var first = process.inputReader().readLine();
    assertNotNull(first, "the server did not start");
    var announcement = ANNOUNCEMENT.matcher(first);
    assertTrue(announcement.matches(), first);
    address = announcement.group(1);
  }

  static Server start(String... config) throws IOException {
    var file = Files.createTempFile("waterwheel", ".toml");
    try {
      Files.writeString(file, String.join("", config));
      var flags = new String[] {
        BINARY, "serve", "--config", file.toString(),
        "--listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0", "--set", "telemetry.log=warn"
      };
      return new Server(new ProcessBuilder(flags).redirectError(ProcessBuilder.Redirect.INHERIT).start());
    } finally {
      Files.delete(file);
    }
  }

  /** A channel of its own, closed with the server. */
  ManagedChannel connect() {
    return connect(address);
  }

  ManagedChannel connect(String target) {
    return connect(target, Map.of());
  }

  /** A channel with a service config, whose JSON says when to retry and how to balance. */
  ManagedChannel connect(String target, Map<String, ?> serviceConfig) {
    var builder = Grpc.newChannelBuilder(target, InsecureChannelCredentials.create());
    var channel = builder.defaultServiceConfig(serviceConfig).build();
    channels.add(channel);
    return channel;
  }

  /** A stub on a channel of its own. */
  WorkerPoolServiceBlockingV2Stub client() {
    return WorkerPoolServiceGrpc.newBlockingV2Stub(connect());
  }

  /** Asks for the drain, as an orchestrator does: the process is sent SIGTERM. */
  void terminate() {
    // Process.destroy would also close the pipe that the receipt comes through.
    assertTrue(process.toHandle().destroy());
  }

  /** Waits until the server is gone, and returns its exit code. */
  int end() throws InterruptedException {
    assertTrue(process.waitFor(PATIENCE_SECONDS, TimeUnit.SECONDS), "the server does not end");
    return process.exitValue();
  }

  @Override
  public void close() {
    channels.forEach(ManagedChannel::shutdownNow);
    process.destroyForcibly();
  }
}
