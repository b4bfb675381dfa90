// Submits a job, streams one, and prints the reason of a refusal. tests/clients/java/pom.xml makes the stubs and compiles it:
//
//     mvn -f tests/clients/java/pom.xml compile exec:java -Dexec.mainClass=Client \
//         -Dexec.args="127.0.0.1:7070 deploy/service-config.json"

import com.google.gson.Gson;
import com.google.protobuf.ByteString;
import com.google.rpc.ErrorInfo;
import com.google.rpc.RetryInfo;
import dev.waterwheel.v1.Job;
import dev.waterwheel.v1.StreamRequest;
import dev.waterwheel.v1.SubmitRequest;
import dev.waterwheel.v1.WorkerPoolServiceGrpc;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.StatusException;
import io.grpc.protobuf.StatusProto;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Map;
import java.util.concurrent.TimeUnit;

public final class Client {
  public static void main(String... args) throws Exception {
    // A channel that balances, checks health, and tries again when the server says that it may.
    Map<String, ?> config = new Gson().fromJson(Files.readString(Path.of(args[1])), Map.class);
    var builder = Grpc.newChannelBuilder(args[0], InsecureChannelCredentials.create());
    var channel = builder.defaultServiceConfig(config).build();
    var pool = WorkerPoolServiceGrpc.newBlockingV2Stub(channel);

    // The deadline is that of the whole job: queue, run and answer.
    var job = Job.newBuilder().setKind("sha256").setPayload(ByteString.copyFromUtf8("hello"));
    var request = SubmitRequest.newBuilder().setJob(job).build();
    var result = pool.withDeadlineAfter(2, TimeUnit.SECONDS).submit(request).getResult();
    System.out.println(result.getOutput().toStringUtf8() + " by job " + result.getJobId());

    var large = Job.newBuilder().setKind("gzip").setPayload(ByteString.copyFromUtf8("hello ".repeat(10_000)));
    var events = pool.withDeadlineAfter(2, TimeUnit.SECONDS).stream(StreamRequest.newBuilder().setJob(large).build());
    for (var event = events.read(); event != null; event = events.read()) {
      System.out.println(event.getSequence() + " " + event.getEventCase());
    }

    try {
      var unknown = SubmitRequest.newBuilder().setJob(Job.newBuilder().setKind("nothing")).build();
      pool.withDeadlineAfter(2, TimeUnit.SECONDS).submit(unknown);
    } catch (StatusException error) {
      for (var detail : StatusProto.fromThrowable(error).getDetailsList()) {
        if (detail.is(ErrorInfo.class)) {
          var info = detail.unpack(ErrorInfo.class);
          System.out.println(info.getReason() + " " + info.getMetadataMap());
        } else if (detail.is(RetryInfo.class)) {
          var delay = detail.unpack(RetryInfo.class).getRetryDelay();
          System.out.println("retry after " + Duration.ofSeconds(delay.getSeconds(), delay.getNanos()));
        }
      }
    }
    channel.shutdownNow();
  }
}
