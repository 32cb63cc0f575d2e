//! Telling callgrind when to look. Without valgrind these are a few instructions without effect.

/// What callgrind is told.
#[derive(Clone, Copy)]
pub enum Tell {
    /// Begin to follow the program; until then it runs at a few times its normal time instead of a hundred.
    Follow = 4,
    /// Forget what was counted.
    Zero = 1,
    /// No longer follow it.
    Leave = 5,
}

/// Valgrind's client request: a sequence that does nothing on a processor, and that valgrind knows.
#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "valgrind listens to nothing but a sequence of machine instructions")]
pub fn tell(what: Tell) {
    let tool = (u64::from(b'C') << 24) | (u64::from(b'T') << 16);
    let request = [tool + what as u64, 0, 0, 0, 0, 0];
    // SAFETY: rdi is turned by 128 bits in all and so is what it was; rbx is exchanged with itself; the
    // request is read by valgrind alone, which writes the answer into rdx.
    unsafe {
        std::arch::asm!(
            "rol rdi, 3", "rol rdi, 13", "rol rdi, 61", "rol rdi, 51", "xchg rbx, rbx",
            inout("rdi") 0u64 => _,
            in("rax") request.as_ptr(),
            inout("rdx") 0u64 => _,
        );
    }
}

/// There is no such sequence here.
#[cfg(not(target_arch = "x86_64"))]
pub fn tell(_: Tell) {}
