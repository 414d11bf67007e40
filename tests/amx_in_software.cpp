// The instructions of AMX, after Intel's manual; registers are those of a thread.  A fault is an instruction of a unit
// that is not configured.
#include <cmath>
#include <cstdint>
#include <cstring>

namespace {
struct Register {
    int rows, bytes;
    char data[16][64];
};
thread_local Register registers[8];
thread_local bool configured;
long faults, products;

Register &register_of(long number) {
    if (!configured) ++faults;
    return registers[number];
}

// Round to float32, and replace what is below 2^-126 by a zero.  Terms have 24 bits at most, so rounding twice is exact.
float added(double x, double y) {
    double total = x + y;
    return std::fabs(total) < 0x1p-126 - 0x1p-151 ? std::copysign(0.0f, total) : static_cast<float>(total);
}

double number(const char *at) {
    uint16_t half;
    std::memcpy(&half, at, 2);
    uint32_t bits = static_cast<uint32_t>(half & (half & 0x7f80 ? 0xffff : 0x8000)) << 16; // a denormal number is zero
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}
} // namespace

extern "C" {
void ldtilecfg(const uint8_t *given) {
    configured = given[0] == 1;
    for (int i = 0; i < 8; ++i) {
        uint16_t bytes;
        std::memcpy(&bytes, given + 16 + 2 * i, 2);
        registers[i] = Register{given[48 + i], bytes, {}};
    }
}

void tilerelease() { configured = false; }

void tilezero(long to) {
    Register &target = register_of(to);
    std::memset(target.data, 0, sizeof target.data);
}

void tileloadd(const char *at, long step, long to) {
    Register &target = register_of(to);
    std::memset(target.data, 0, sizeof target.data);
    for (int row = 0; row < target.rows; ++row) std::memcpy(target.data[row], at + row * step, target.bytes);
}

void tilestored(char *at, long step, long from) {
    Register &source = register_of(from);
    for (int row = 0; row < source.rows; ++row) std::memcpy(at + row * step, source.data[row], source.bytes);
}

void tdpbf16ps(long of_panel, long of_rows, long of_sums) {
    Register &b = register_of(of_panel), &a = register_of(of_rows), &c = register_of(of_sums);
    ++products;
    if (c.rows != a.rows || a.bytes != 4 * b.rows || c.bytes != b.bytes) ++faults;
    for (int row = 0; row < c.rows; ++row)
        for (int column = 0; column < c.bytes / 4; ++column) {
            float even = 0, odd = 0, sum;
            for (int k = 0; k < b.rows; ++k) {
                const char *x = a.data[row] + 4 * k, *y = b.data[k] + 4 * column;
                even = added(even, number(x) * number(y));
                odd = added(odd, number(x + 2) * number(y + 2));
            }
            char *at = c.data[row] + 4 * column;
            std::memcpy(&sum, at, 4);
            sum = added(added(sum, 0), added(even, odd));
            std::memcpy(at, &sum, 4);
        }
}

long count_faults() { return faults; }
long count_products() { return products; }
}
