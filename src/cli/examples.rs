//! What `--help` shows first.

pub(super) const ATTACH: &str = "\
Examples:
  darc attach 4242                                   where the time of process 4242 goes
  darc attach redis-server --f0 processCommand       why some commands are slow
  darc attach 'nginx: worker*' --f0 ngx_http_process_request -o out.html
  darc attach --all postgres --f0 exec_simple_query  every process of a program, side by side";

pub(super) const RUN: &str = "\
Examples:
  darc run -- ./program input.txt                    where the time of a program goes
  darc run --f0 parse -- ./program input.txt         why some calls of parse are slow";

pub(super) const RESUME: &str = "\
Examples:
  darc resume out.txt                                run the same command, or attach to the same process
  darc resume out.txt -p 4242                        go on in this process";

pub(super) const PROFILE: &str = "\
Examples:
  darc profile -p 4242 'serve*'                      latencies of functions, until Ctrl-C
  darc profile -p 4242 --syscalls -d 10s             latencies of system calls";

pub(super) const WATCH: &str = "\
Examples:
  darc watch -p 4242 serve                           serve and what it calls, over time";

pub(super) const REPORT: &str = "\
Examples:
  darc report out.txt                                the stored results again
  darc report out.txt --open                         as a page, in the browser";

pub(super) const COMPARE: &str = "\
Examples:
  darc compare before.txt after.txt                  what has changed
  darc compare before.txt after.txt --fail-on new-peak   for scripts: exit code 8";

pub(super) const LIST: &str = "\
Examples:
  darc list -p 4242 'serve*'                         functions that --f0 accepts";

pub(super) const STATUS: &str = "\
Examples:
  darc status -p 4242                                how far another darc has come";

pub(super) const SAMPLE: &str = "\
Examples:
  darc sample -p 4242 -d 5s                          which functions use CPU time
  darc sample -p 4242 --f0 serve --during-peak 2     the same, in slow calls of serve only";

pub(super) const DOCTOR: &str = "\
Examples:
  darc doctor                                        what works on this machine";

pub(super) const PROVE: &str = "\
Examples:
  darc prove out.txt                                 are the causes in out.txt causes?
  darc prove out.txt --cause parse                   is parse one?
  darc prove out.txt --cause fetch --delay-by sleep  is what another thread does there one?
  darc prove out.txt --self-check                    what do darc's own probes do?";

pub(super) const DEMO: &str = "\
Examples:
  darc demo                                          find two causes in a small program";
