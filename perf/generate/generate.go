package generate

// The compiled program is committed, for both byte orders: see lb/steer.

//go:generate go tool bpf2go -cc clang-14 -strip llvm-strip-14 -target bpfel,bpfeb -tags linux -type plan -type progress generate bpf/generate.c -- -O2 -g -Wall -Wextra -Werror -mcpu=v2
