//! Refuses io_uring, as the seccomp filters of container runtimes do.

/// Makes io_uring_setup fail with EPERM for this thread and for the processes that it starts.
pub fn refuse_io_uring() {
    let statement =
        |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
    let setup = libc::SYS_io_uring_setup as u32;
    let refusal = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
    let mut filter = [
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0), // The call's number.
        statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, setup),
        statement(libc::BPF_RET | libc::BPF_K, 0, 0, refusal),
        statement(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: takes numbers; concerns this thread and its children alone.
    let privileges = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    assert_eq!(privileges, 0);
    // SAFETY: a valid program of the given length, copied by the kernel.
    let code = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program) };
    assert_eq!(code, 0);
}
