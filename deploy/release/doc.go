// Command release builds what a release of Weir consists of: static binaries, Debian
// and RPM packages, archives, container images, the chart, a bill of materials for each binary, and
// checksums. Two runs on the same commit write the same bytes; an image also has the
// certificates of public authorities of the machine.
//
// It is a separate module, so that the libraries for packages stay out of Weir's.
package main
