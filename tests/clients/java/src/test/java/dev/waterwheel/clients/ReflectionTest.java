package dev.waterwheel.clients;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.protobuf.ByteString;
import com.google.protobuf.DescriptorProtos.FileDescriptorProto;
import com.google.protobuf.DescriptorProtos.ServiceDescriptorProto;
import dev.waterwheel.v1.WorkerPoolServiceOuterClass;
import io.grpc.Channel;
import io.grpc.reflection.v1.ServerReflectionGrpc;
import io.grpc.reflection.v1.ServerReflectionRequest;
import io.grpc.reflection.v1.ServerReflectionResponse;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;

class ReflectionTest {
  private static final ServerReflectionRequest LIST =
      ServerReflectionRequest.newBuilder().setListServices("").build();
  private static final ServerReflectionRequest FILE =
      ServerReflectionRequest.newBuilder().setFileContainingSymbol("waterwheel.v1.WorkerPoolService").build();

  /** Sends one request on a call of its own and returns the answer. */
  private interface Ask {
    ServerReflectionResponse ask(ServerReflectionRequest request) throws Exception;
  }

  private static Ask v1(Channel channel) {
    var stub = ServerReflectionGrpc.newBlockingV2Stub(channel).withDeadlineAfter(20, TimeUnit.SECONDS);
    return request -> {
      var call = stub.serverReflectionInfo();
      call.write(request);
      call.halfClose();
      return call.read();
    };
  }

  /** The older version, which is the same on the wire. */
  @SuppressWarnings("deprecation")
  private static Ask v1alpha(Channel channel) {
    var stub =
        io.grpc.reflection.v1alpha.ServerReflectionGrpc.newBlockingV2Stub(channel)
            .withDeadlineAfter(20, TimeUnit.SECONDS);
    return request -> {
      var call = stub.serverReflectionInfo();
      call.write(io.grpc.reflection.v1alpha.ServerReflectionRequest.parseFrom(request.toByteString()));
      call.halfClose();
      return ServerReflectionResponse.parseFrom(call.read().toByteString());
    };
  }

  private static void showsTheContract(Ask reflection) throws Exception {
    var services = reflection.ask(LIST).getListServicesResponse().getServiceList();
    var names = services.stream().map(service -> service.getName()).toList();
    assertTrue(names.containsAll(List.of("waterwheel.v1.WorkerPoolService", "grpc.health.v1.Health")), names::toString);

    var own = WorkerPoolServiceOuterClass.getDescriptor().findServiceByName("WorkerPoolService").toProto();
    ServiceDescriptorProto shown = null;
    for (ByteString file : reflection.ask(FILE).getFileDescriptorResponse().getFileDescriptorProtoList()) {
      for (var service : FileDescriptorProto.parseFrom(file).getServiceList()) {
        shown = service.getName().equals("WorkerPoolService") ? service : shown;
      }
    }
    assertEquals(own, shown);
  }

  @Test
  void ofVersion1ShowsTheContract() throws Exception {
    try (var server = Server.start(Server.EVERYDAY)) {
      showsTheContract(v1(server.connect()));
    }
  }

  @Test
  void ofVersion1AlphaShowsTheContract() throws Exception {
    try (var server = Server.start(Server.EVERYDAY)) {
      showsTheContract(v1alpha(server.connect()));
    }
  }
}
