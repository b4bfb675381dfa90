# Each recipe is one line of `.ci/run`, which needs no `just`: `just` lists them, `just test scheduler` runs one.

_list:
    @just --list --unsorted

# The library and the program compile
check:
    bash .ci/run check

# The tests of a part, as in `just test scheduler` and `just test it/drain`; without a part, all of them
test part="":
    bash .ci/run tests{{ if part == "" { "" } else { ":" + part } }}

# The rules of tests/tidy
tidy:
    bash .ci/run tidy

# Formatting and lints, and the rules of tests/tidy
lint:
    bash .ci/run formatting lints tidy

# The figures of one benchmark, as in `just bench compare`; without a name, whether all of them work
bench name="":
    bash .ci/run benches{{ if name == "" { "" } else { ":" + name } }}

# The documentation of the library
doc:
    bash .ci/run documentation

# The rules for crates: bans, licences, sources
deny:
    bash .ci/run dependencies

# The contract in proto/: lint, format, and what would break clients of the last release
proto:
    bash .ci/run contract

# The conformance runner of Connect: gRPC, gRPC-Web and JSON
conformance:
    bash .ci/run conformance

# What is in deploy/
deploy:
    bash .ci/run deployment

# Real clients in Python, Node, Go and Java
clients:
    bash .ci/run clients

# The tools that operators have, such as grpcurl
tools:
    bash .ci/run tools

# The page in a browser, with pictures of each view in target/page/
page:
    bash .ci/run page

# What `cargo publish` would send compiles
package:
    bash .ci/run package

# What a release consists of: static program, deb, rpm, chart, bill of materials, checksums
release:
    bash .ci/run release

# All that must hold before a change lands, or the steps that are named
ci *steps:
    bash .ci/run {{ steps }}
