package dev.waterwheel.clients;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.gson.JsonParser;
import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.lang.ProcessBuilder.Redirect;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;

/** The examples do what they say; the one of a worker that attaches keeps the protocol, too. */
class ExampleTest {
  private static final String DIGEST = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";

  /** The example of the documentation does what it says. */
  @Test
  void theExampleRuns() throws Exception {
    var lines = told("Client", Server.EVERYDAY, "../../../deploy/service-config.json");
    assertTrue(lines.get(0).startsWith(DIGEST + " by job "), lines.toString());
    assertTrue(lines.get(1).equals("1 STARTED"), lines.toString());
    assertTrue(lines.get(lines.size() - 2).endsWith(" FINISHED"), lines.toString());
    assertTrue(lines.get(lines.size() - 1).matches("UNKNOWN_KIND .*NOT_STARTED.*"), lines.toString());
  }

  /** The example of detached jobs does what it says. */
  @Test
  void theExampleOfDetachedJobsRuns() throws Exception {
    var lines = told("Jobs", Server.EVERYDAY + "\n[store]\nmemory = true\n");
    assertTrue(lines.get(0).matches("created report-.* true"), lines.toString());
    assertTrue(lines.get(lines.size() - 5).endsWith(" OUTPUT"), lines.toString());
    var ends = lines.subList(lines.size() - 3, lines.size());
    var expected =
        List.of(
            "waited JOB_STATE_SUCCEEDED slept 300 ms",
            "cancelled JOB_STATE_CANCELLED",
            "retried JOB_STATE_SUCCEEDED");
    assertEquals(expected, ends, lines.toString());
  }

  /** The lines that an example prints. */
  private static List<String> told(String example, String config, String... more) throws Exception {
    var told = new ByteArrayOutputStream();
    var stdout = System.out;
    try (var server = Server.start(config)) {
      System.setOut(new PrintStream(told));
      // No import reaches a class without a package.
      var main = Class.forName(example).getMethod("main", String[].class);
      var args = Stream.concat(Stream.of(server.address), Stream.of(more)).toArray(String[]::new);
      main.invoke(null, (Object) args);
    } finally {
      System.setOut(stdout);
    }
    return told.toString().lines().toList();
  }

  private static final String FAR =
      """
      [pool.far]
      when_full = "wait"
      [kind.thumbnail]
      pool = "far"
      remote = true
      """;

  private static final List<String> WORKER = List.of(
      ProcessHandle.current().info().command().orElseThrow(), "-cp", System.getProperty("java.class.path"), "Worker");

  @Test
  void theWorkerKeepsTheProtocol() throws Exception {
    var command = new ArrayList<>(List.of(Server.BINARY, "worker", "test", "--attach", "--output", "json", "--"));
    command.addAll(WORKER);
    var kit = new ProcessBuilder(command).redirectError(Redirect.INHERIT).start();
    var rows = kit.inputReader().lines().toList();
    assertEquals(16, rows.size(), rows.toString());
    for (var row : rows) {
      assertEquals("pass", JsonParser.parseString(row).getAsJsonObject().get("verdict").getAsString(), row);
    }
    assertEquals(0, kit.waitFor());
  }

  @Test
  void theWorkerRunsTheJobsOfAServer() throws Exception {
    try (var server = Server.start(FAR)) {
      var client = server.client();
      // It waits for the worker, which is still to attach.
      var early = Calls.background(client, "thumbnail", "early");
      var builder = new ProcessBuilder(WORKER).redirectError(Redirect.INHERIT);
      builder.environment().put("WATERWHEEL_ADDRESS", server.address);
      var worker = builder.start();
      try {
        assertEquals("early", Calls.await(early).getResult().getOutput().toStringUtf8());
        assertEquals(4, Calls.pool(client, "far").getSize().getWorkers());
        worker.destroy();
        assertTrue(worker.waitFor(Server.PATIENCE_SECONDS, TimeUnit.SECONDS), "the worker does not end");
        assertEquals(0, worker.exitValue());
        Calls.eventually("its slots are gone", () -> Calls.pool(client, "far").getSize().getWorkers() == 0);
      } finally {
        worker.destroyForcibly();
      }
    }
  }
}
