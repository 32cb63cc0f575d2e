//! Client requests to callgrind. Without valgrind they are a few instructions without effect.

/// A client request to callgrind, with its number in `callgrind.h`.
#[derive(Clone, Copy)]
pub enum Request {
    /// Start instrumentation. Until then the program runs a few times slower than normal instead of a hundred times.
    StartInstrumentation = 4,
    /// Reset the counters.
    ZeroStats = 1,
    /// Stop instrumentation.
    StopInstrumentation = 5,
}

/// Sends a client request: an instruction sequence without effect on a processor, which valgrind recognises.
#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "valgrind accepts client requests only as a sequence of machine instructions")]
pub fn send(request: Request) {
    let tool = (u64::from(b'C') << 24) | (u64::from(b'T') << 16);
    let request = [tool + request as u64, 0, 0, 0, 0, 0];
    // SAFETY: rdi is rotated by 128 bits in total, so it is unchanged; rbx is exchanged with itself; only
    // valgrind reads the request, and writes the result into rdx.
    unsafe {
        std::arch::asm!(
            "rol rdi, 3", "rol rdi, 13", "rol rdi, 61", "rol rdi, 51", "xchg rbx, rbx",
            inout("rdi") 0u64 => _,
            in("rax") request.as_ptr(),
            inout("rdx") 0u64 => _,
        );
    }
}

/// Does nothing: the sequence for this architecture is not implemented.
#[cfg(not(target_arch = "x86_64"))]
pub fn send(_: Request) {}
