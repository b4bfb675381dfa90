package clients

import (
	"slices"
	"testing"

	"google.golang.org/grpc"
	v1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	v1alpha "google.golang.org/grpc/reflection/grpc_reflection_v1alpha"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/types/descriptorpb"
	pb "waterwheel.dev/go/waterwheel/v1"
)

// ask sends one request on an open call and returns the answer.
type ask func(*v1.ServerReflectionRequest) *v1.ServerReflectionResponse

var listServices = &v1.ServerReflectionRequest{MessageRequest: &v1.ServerReflectionRequest_ListServices{}}

func fileOf(symbol string) *v1.ServerReflectionRequest {
	return &v1.ServerReflectionRequest{
		MessageRequest: &v1.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: symbol},
	}
}

// convert moves a message to the other version, which is the same on the wire.
func convert[T proto.Message](t *testing.T, from proto.Message, to T) T {
	t.Helper()
	bytes, err := proto.Marshal(from)
	if err == nil {
		err = proto.Unmarshal(bytes, to)
	}
	if err != nil {
		t.Fatal(err)
	}
	return to
}

func askV1(t *testing.T, connection *grpc.ClientConn) ask {
	call, err := v1.NewServerReflectionClient(connection).ServerReflectionInfo(within(t))
	if err != nil {
		t.Fatal(err)
	}
	return func(request *v1.ServerReflectionRequest) *v1.ServerReflectionResponse {
		call.Send(request)
		response, err := call.Recv()
		if err != nil {
			t.Fatal(err)
		}
		return response
	}
}

func askV1alpha(t *testing.T, connection *grpc.ClientConn) ask {
	call, err := v1alpha.NewServerReflectionClient(connection).ServerReflectionInfo(within(t))
	if err != nil {
		t.Fatal(err)
	}
	return func(request *v1.ServerReflectionRequest) *v1.ServerReflectionResponse {
		call.Send(convert(t, request, &v1alpha.ServerReflectionRequest{}))
		response, err := call.Recv()
		if err != nil {
			t.Fatal(err)
		}
		return convert(t, response, &v1.ServerReflectionResponse{})
	}
}

func TestReflectionShowsTheContract(t *testing.T) {
	connection := connect(t, start(t, everyday).address)
	versions := map[string]func(*testing.T, *grpc.ClientConn) ask{"v1": askV1, "v1alpha": askV1alpha}
	for version, open := range versions {
		t.Run(version, func(t *testing.T) {
			ask := open(t, connection)
			var services []string
			for _, service := range ask(listServices).GetListServicesResponse().GetService() {
				services = append(services, service.Name)
			}
			for _, expected := range []string{"waterwheel.v1.WorkerPoolService", "grpc.health.v1.Health"} {
				if !slices.Contains(services, expected) {
					t.Errorf("%s is not in %v", expected, services)
				}
			}
			if response := ask(fileOf("waterwheel.v1.WorkerPoolService")); !describes(t, response) {
				t.Errorf("not the service that the stubs were made from: %v", response)
			}
		})
	}
}

// describes says whether one of the files describes the service as the stubs know it.
func describes(t *testing.T, response *v1.ServerReflectionResponse) bool {
	t.Helper()
	own := protodesc.ToServiceDescriptorProto(pb.File_waterwheel_v1_worker_pool_service_proto.Services().Get(0))
	for _, bytes := range response.GetFileDescriptorResponse().GetFileDescriptorProto() {
		var file descriptorpb.FileDescriptorProto
		if err := proto.Unmarshal(bytes, &file); err != nil {
			t.Fatal(err)
		}
		if slices.ContainsFunc(file.Service, func(s *descriptorpb.ServiceDescriptorProto) bool { return proto.Equal(s, own) }) {
			return true
		}
	}
	return false
}
