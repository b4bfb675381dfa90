package dev.waterwheel.clients;

import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import org.junit.jupiter.api.Test;

class ExampleTest {
  private static final String DIGEST = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";

  /** The example of the documentation does what it says. */
  @Test
  void theExampleRuns() throws Exception {
    var told = new ByteArrayOutputStream();
    var stdout = System.out;
    try (var server = Server.start(Server.EVERYDAY)) {
      System.setOut(new PrintStream(told));
      // No import reaches a class without a package.
      var main = Class.forName("Client").getMethod("main", String[].class);
      main.invoke(null, (Object) new String[] {server.address, "../../../deploy/service-config.json"});
    } finally {
      System.setOut(stdout);
    }
    var lines = told.toString().lines().toList();
    assertTrue(lines.get(0).startsWith(DIGEST + " by job "), told.toString());
    assertTrue(lines.get(1).equals("1 STARTED"), told.toString());
    assertTrue(lines.get(lines.size() - 2).endsWith(" FINISHED"), told.toString());
    assertTrue(lines.get(lines.size() - 1).matches("UNKNOWN_KIND .*NOT_STARTED.*"), told.toString());
  }
}
