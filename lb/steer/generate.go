package steer

// The compiled program is committed, for both byte orders, so that a build
// needs no C compiler. After a change to bpf/ run `go generate ./lb/steer` with
// Debian 12's clang-14, llvm-14 and libbpf-dev; a test compares when they are
// installed.

// The programs that read the flow table need atomic operations with a result (Linux 5.12,
// -mcpu=v3), and are an object of their own: the steering program alone needs neither.

//go:generate go tool bpf2go -cc clang-14 -strip llvm-strip-14 -target bpfel,bpfeb -tags linux -type frontend_range steer bpf/steer.c -- -O2 -g -Wall -Wextra -Werror -mcpu=v2
//go:generate go tool bpf2go -cc clang-14 -strip llvm-strip-14 -target bpfel,bpfeb -tags linux repeat bpf/repeat.c -- -O2 -g -Wall -Wextra -Werror -mcpu=v3
