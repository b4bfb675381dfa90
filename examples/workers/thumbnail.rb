#!/usr/bin/env ruby
# A worker of waterwheel that serves the kind `thumbnail`. It needs Ruby 2.7 and nothing else.
#
#   waterwheel worker test -- ruby thumbnail.rb     checks that it keeps the protocol
#   waterwheel dev --worker thumbnail.rb            serves it, and starts it anew when this file changes
#
# Load what is slow to load (a model, a connection) here, once. It is kept from job to job.
require "io/wait"
require "json"

# Does one job: returns the result and its content type.
def run(job)
  [job.payload, job.content_type]
end

# What `waterwheel worker test` asks for. It shows all that a handler can do; yours may do without it.
def conformance(job)
  case job.labels["task"]
  when "chunks"
    3.times { |number| job.output("#{number}\n") }
    return ["end\n", "text/plain"]
  when "progress" then job.progress(0.5, "half of it")
  when "fail" then raise Failed.new("NOT_FOUND", "no such picture")
  when "wait"
    nil until job.cancelled(60)
    raise Failed.new("CANCELLED", "stopped because of #{job.cancelled}")
  when "print" then puts "a line on standard output"
  when "crash" then exit!(3)
  end
  [job.payload, job.content_type]
end

KINDS = { "thumbnail" => method(:run), "conformance" => method(:conformance) }

# Ends a job with a gRPC status code. Any other error ends it with INTERNAL.
class Failed < StandardError
  attr_reader :code, :retryable

  def initialize(code, message, retryable: nil)
    super(message)
    @code, @retryable = code, retryable
  end
end

class Job
  attr_reader :payload

  def initialize(header, payload)
    @header, @payload = header, payload
  end

  # id, job_id, kind, content_type, budget_ms, request_id, tenant, labels, attempt, token
  %w[id job_id kind content_type budget_ms request_id tenant labels attempt token].each do |name|
    define_method(name) { @header[name] }
  end

  # Sends a piece of the result now, which a caller of `Stream` gets as a chunk.
  def output(piece)
    respond("output", { id: id }, piece)
  end

  def progress(fraction, message = "")
    respond("progress", { id: id, fraction: fraction, message: message })
  end

  # Why the job is to stop, if it is: ask it between the steps of long work. It waits up to `wait` seconds for that.
  def cancelled(wait = 0)
    if !@reason && REQUESTS.wait_readable(wait)
      message, = receive
      @reason = message.dig("cancel", "reason")
    end
    @reason
  end
end

# The protocol: a line of JSON on descriptor 3 or 4, then as many bytes as its `bytes` says.
REQUESTS = IO.new(3, "rb")
RESPONSES = IO.new(4, "wb")
$stdout.sync = true

def respond(name, message, data = "")
  RESPONSES.write(JSON.generate(name => message, "bytes" => data.bytesize), "\n", data)
  RESPONSES.flush
end

def receive
  line = REQUESTS.gets or exit # The service is gone.
  message = JSON.parse(line)
  $leaves ||= message.key?("leave")
  [message, REQUESTS.read(message.fetch("bytes", 0))]
end

respond("ready", { protocol: 1, kinds: KINDS.keys, name: "thumbnail" })
until $leaves
  message, data = receive
  next unless message["run"]

  job = Job.new(message["run"], data)
  begin
    handler = KINDS[job.kind] or raise Failed.new("UNIMPLEMENTED", "no handler for the kind #{job.kind}")
    result, content_type = handler.call(job)
    answer = "done", { id: job.id, content_type: content_type }, result
  rescue Failed => error
    answer = "failed", { id: job.id, code: error.code, message: error.message, retryable: error.retryable }
  rescue StandardError => error
    warn error.full_message
    answer = "failed", { id: job.id, code: "INTERNAL", message: error.message }
  end
  respond(*answer)
end
