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
    if !@reason && $requests.wait_readable(wait)
      message, = receive
      @reason = message.dig("cancel", "reason")
    end
    @reason
  end
end

# The protocol: a line of JSON on descriptor 3 or 4, then as many bytes as its `bytes` says.
def encoded(name, message, data = "")
  data = String.new(data, encoding: Encoding::BINARY) # Fails for what is not a string.
  JSON.generate(name => message, "bytes" => data.bytesize).b << "\n" << data
end

def respond(name, message, data = "")
  $responses.write(encoded(name, message, data))
  $responses.flush
end

def receive
  line = $requests.gets or exit! # The service is gone.
  message = JSON.parse(line)
  $leaves ||= message.key?("leave")
  [message, $requests.read(message.fetch("bytes", 0))]
end

# A text that JSON can hold.
def text(value, max = 2000)
  value.to_s.encode("UTF-8", invalid: :replace, undef: :replace).scrub[0, max]
end

# Runs one job. Every way out of its handler is an answer, and a result that cannot be sent is an error of it.
def answer(job)
  handler = KINDS[job.kind] or raise Failed.new("UNIMPLEMENTED", "no handler for the kind #{job.kind}")
  result, content_type = handler.call(job)
  encoded("done", { id: job.id, content_type: text(content_type) }, result)
rescue Failed => error
  encoded("failed", { id: job.id, code: text(error.code), message: text(error.message), retryable: error.retryable })
rescue SignalException
  raise
rescue Exception => error # SystemExit too: `exit` ends a job, not the worker.
  warn text(error.full_message, 10_000)
  encoded("failed", { id: job.id, code: "INTERNAL", message: text(error.message) })
end

def main
  $requests, $responses = IO.new(3, "rb"), IO.new(4, "wb")
  $stdout.sync = true
  respond("ready", { protocol: 1, kinds: KINDS.keys, name: "thumbnail" })
  until $leaves
    message, data = receive
    next unless message["run"]

    $responses.write(answer(Job.new(message["run"], data)))
    $responses.flush
  end
end

main if $PROGRAM_NAME == __FILE__ # A test can load this file.
