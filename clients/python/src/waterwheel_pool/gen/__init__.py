from google.protobuf import any_pb2, descriptor_pool, duration_pb2, timestamp_pb2

own_pool = descriptor_pool.DescriptorPool()
for _known in (any_pb2, duration_pb2, timestamp_pb2):
    own_pool.AddSerializedFile(_known.DESCRIPTOR.serialized_pb)
