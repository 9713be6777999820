// The trainer's matrix products on one core: oneDNN (plain layouts, packed weights, bfloat16) against OpenBLAS.
// OpenBLAS is opened at run time, so nothing links it; without it its column is empty.
//
//   bench_gemm [--repetitions N]
//
// Every figure is the best of N timed runs in GFLOP/s: the machine may be shared, and noise only ever adds time.
#include <dlfcn.h>
#include <immintrin.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <oneapi/dnnl/dnnl.hpp>
#include <string>
#include <vector>

#include "bellows/base/clock.h"
#include "bellows/base/memory.h"

namespace {

using bellows::HostMemory;
using bellows::now_ns;
using dims = dnnl::memory::dims;
using dt = dnnl::memory::data_type;

int repetitions = 15;

double best_seconds(const std::function<void()>& run) {
  run();
  double best = 1e9;
  for (int i = 0; i < repetitions; ++i) {
    const auto start = now_ns();
    run();
    best = std::min(best, static_cast<double>(now_ns() - start) * 1e-9);
  }
  return best;
}

double gflops(long m, long n, long k, double seconds) { return 2.0 * m * n * k / seconds * 1e-9; }

// Multiply-adds of one core without any memory in the way. Twelve independent chains hide the latency.
#if defined(__AVX512F__)
template <class Step>
double peak(Step step, double flops_per_vector) {
  constexpr long kRounds = 4'000'000;
  const double seconds = best_seconds([&] {
    __m512 a{}, b{}, c{}, d{}, e{}, f{}, g{}, h{}, i{}, j{}, k{}, l{};
    // To the compiler twelve values that it knows nothing about, lest it computes one chain for all.
    asm volatile(""
                 : "+v"(a), "+v"(b), "+v"(c), "+v"(d), "+v"(e), "+v"(f), "+v"(g), "+v"(h), "+v"(i), "+v"(j), "+v"(k),
                   "+v"(l));
    for (long round = 0; round < kRounds; ++round) {
      step(a), step(b), step(c), step(d), step(e), step(f), step(g), step(h), step(i), step(j), step(k), step(l);
    }
    asm volatile("" ::"v"(a), "v"(b), "v"(c), "v"(d), "v"(e), "v"(f), "v"(g), "v"(h), "v"(i), "v"(j), "v"(k), "v"(l));
  });
  return 12 * flops_per_vector * kRounds / seconds * 1e-9;
}
double peak_f32() {
  const __m512 x = _mm512_set1_ps(0.5f), y = _mm512_set1_ps(0.25f);
  return peak([&](__m512& v) { v = _mm512_fmadd_ps(x, y, v); }, 32);
}
#else
double peak_f32() { return 0; }
#endif
#if defined(__AVX512BF16__)
double peak_bf16() {
  const __m512bh x = _mm512_cvtne2ps_pbh(_mm512_set1_ps(0.5f), _mm512_set1_ps(0.5f));
  return peak([&](__m512& v) { v = _mm512_dpbf16_ps(v, x, x); }, 64);
}
#else
double peak_bf16() { return 0; }
#endif

using Sgemm = void (*)(int, int, int, int, int, int, float, const float*, int, const float*, int, float, float*, int);
Sgemm open_blas() {
  void* handle = dlopen("libopenblas.so.0", RTLD_NOW);
  if (handle == nullptr) return nullptr;
  if (auto set = reinterpret_cast<void (*)(int)>(dlsym(handle, "openblas_set_num_threads"))) set(1);
  return reinterpret_cast<Sgemm>(dlsym(handle, "cblas_sgemm"));
}

dnnl::engine& engine() {
  static dnnl::engine e(dnnl::engine::kind::cpu, 0);
  return e;
}
dnnl::stream& stream() {
  static dnnl::stream s(engine());
  return s;
}

// C (m, n) = A (m, k) B (k, n): `ta`/`tb` say that the operand is stored the other way round.
struct Product {
  const char* what;
  long m, n, k;
  bool ta, tb;
};

struct Figures {
  double plain = 0, packed = 0, pack_us = 0;
  std::string plain_impl, packed_impl;
};

Figures dnnl_figures(const Product& p, dt type, dt out_type) {
  Figures f;
  const std::size_t size = type == dt::f32 ? 4 : 2;
  HostMemory a(p.m * p.k * size), b(p.k * p.n * size), c(p.m * p.n * 4), packed(p.k * p.n * size * 2 + (1 << 20)),
      scratch(64 << 20);
  const dnnl::memory::desc ad({p.m, p.k}, type, p.ta ? dims{1, p.m} : dims{p.k, 1});
  const dnnl::memory::desc bd({p.k, p.n}, type, p.tb ? dims{1, p.k} : dims{p.n, 1});
  const dnnl::memory::desc cd({p.m, p.n}, out_type, dims{p.n, 1});
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  const auto time = [&](const dnnl::memory::desc& weights, std::string& impl, bool pack) {
    dnnl::matmul::primitive_desc pd({ad, weights, cd}, attr, engine());
    impl = pd.impl_info_str();
    dnnl::matmul product(pd);
    dnnl::memory am(ad, engine(), a.data()), cm(cd, engine(), c.data()), bm(bd, engine(), b.data());
    dnnl::memory sm(pd.scratchpad_desc(), engine(), scratch.data());
    if (pack) {
      dnnl::memory pm(pd.weights_desc(), engine(), packed.data());
      dnnl::reorder reorder(bm, pm);
      f.pack_us = 1e6 * best_seconds([&] { reorder.execute(stream(), bm, pm); });
      bm = pm;
    }
    return gflops(p.m, p.n, p.k, best_seconds([&] {
                    product.execute(
                        stream(),
                        {{DNNL_ARG_SRC, am}, {DNNL_ARG_WEIGHTS, bm}, {DNNL_ARG_DST, cm}, {DNNL_ARG_SCRATCHPAD, sm}});
                  }));
  };
  f.plain = time(bd, f.plain_impl, false);
  f.packed = time(dnnl::memory::desc({p.k, p.n}, type, dnnl::memory::format_tag::any), f.packed_impl, true);
  return f;
}

// The weight gradient as an inner product's backward: dW (n, k) = dY (m, n)^T X (m, k).
double dnnl_weight_gradient(long m, long n, long k, dt type, std::string& impl) {
  const std::size_t size = type == dt::f32 ? 4 : 2;
  HostMemory x(m * k * size), dy(m * n * size), dw(n * k * 4 + (1 << 20)), scratch(64 << 20);
  const dnnl::memory::desc xd({m, k}, type, dims{k, 1}), yd({m, n}, type, dims{n, 1}), wd({n, k}, dt::f32, dims{k, 1});
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  const dnnl::memory::desc wf({n, k}, type, dnnl::memory::format_tag::any);
  dnnl::inner_product_forward::primitive_desc fwd({dnnl::prop_kind::forward_training, xd, wf, yd}, engine());
  dnnl::inner_product_backward_weights::primitive_desc pd({xd, wd, yd}, attr, engine(), fwd);
  impl = pd.impl_info_str();
  dnnl::inner_product_backward_weights product(pd);
  dnnl::memory xm(xd, engine(), x.data()), ym(yd, engine(), dy.data()), wm(wd, engine(), dw.data());
  dnnl::memory sm(pd.scratchpad_desc(), engine(), scratch.data());
  return gflops(
      m, n, k, best_seconds([&] {
        product.execute(
            stream(),
            {{DNNL_ARG_SRC, xm}, {DNNL_ARG_DIFF_DST, ym}, {DNNL_ARG_DIFF_WEIGHTS, wm}, {DNNL_ARG_SCRATCHPAD, sm}});
      }));
}

double blas_figure(Sgemm sgemm, const Product& p) {
  if (sgemm == nullptr) return 0;
  HostMemory a(p.m * p.k * 4), b(p.k * p.n * 4), c(p.m * p.n * 4);
  constexpr int kRowMajor = 101, kNo = 111, kTrans = 112;
  return gflops(p.m, p.n, p.k, best_seconds([&] {
                  sgemm(kRowMajor, p.ta ? kTrans : kNo, p.tb ? kTrans : kNo, p.m, p.n, p.k, 1.0f, a.as<float>().data(),
                        p.ta ? p.m : p.k, b.as<float>().data(), p.tb ? p.k : p.n, 0.0f, c.as<float>().data(), p.n);
                }));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3 && std::strcmp(argv[1], "--repetitions") == 0) repetitions = std::max(1, std::atoi(argv[2]));
  // The library's OpenMP: resolved at run time, as the trainer does it.
  if (auto set = reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"))) set(1);
  const Sgemm sgemm = open_blas();
  std::printf("peak of one core by plain multiply-add loops: f32 %.0f GFLOP/s, bf16 %.0f GFLOP/s\n", peak_f32(),
              peak_bf16());
  const auto version = dnnl_version();
  std::printf("oneDNN %d.%d.%d; OpenBLAS %s\n\n", version->major, version->minor, version->patch,
              sgemm ? "found" : "not found");
  std::vector<Product> products;
  struct Layer {
    const char* name;
    long out, in;
  };
  for (const Layer& l : {Layer{"qkv", 1152, 384}, Layer{"proj", 384, 384}, Layer{"up", 1536, 384},
                         Layer{"down", 384, 1536}, Layer{"head", 8192, 384}})
    for (const long rows : {64L, 128L, 256L, 1024L}) {
      products.push_back({l.name, rows, l.out, l.in, false, true});
      products.push_back({l.name, rows, l.in, l.out, false, false});
    }
  // Attention: a block of 64 queries against 64..256 keys, heads of 64.
  products.push_back({"scores", 64, 64, 64, false, true});
  products.push_back({"scores", 64, 256, 64, false, true});
  products.push_back({"values", 64, 64, 64, false, false});
  products.push_back({"values", 64, 64, 256, false, false});
  std::printf("%-7s %5s %5s %5s %3s | %8s %8s %8s %8s | %8s %8s %8s | implementations\n", "product", "m", "n", "k",
              "B^T", "OpenBLAS", "dnnl", "packed", "pack us", "bf16", "packed", "pack us");
  for (const Product& p : products) {
    const double blas = blas_figure(sgemm, p);
    const Figures f = dnnl_figures(p, dt::f32, dt::f32), h = dnnl_figures(p, dt::bf16, dt::f32);
    std::printf("%-7s %5ld %5ld %5ld %3s | %8.0f %8.0f %8.0f %8.1f | %8.0f %8.0f %8.1f | %s %s %s %s\n", p.what, p.m,
                p.n, p.k, p.tb ? "yes" : "no", blas, f.plain, f.packed, f.pack_us, h.plain, h.packed, h.pack_us,
                f.plain_impl.c_str(), f.packed_impl.c_str(), h.plain_impl.c_str(), h.packed_impl.c_str());
    std::fflush(stdout);
  }
  std::printf("\nweight gradients dW (out, in) = dY^T X over 1024 rows, a slice of `out` rows at a time\n");
  std::printf("%-7s %5s %5s | %8s %8s %8s | %8s %8s | implementations\n", "product", "out", "in", "OpenBLAS", "matmul",
              "inner", "bf16 mm", "bf16 ip");
  for (const long in : {384L, 1536L})
    for (const long out : {64L, 128L, 192L, 384L, 1152L, 1536L}) {
      const Product p{"wgrad", out, in, 1024, true, false};
      std::string i1, i2;
      const double blas = blas_figure(sgemm, p);
      const Figures f = dnnl_figures(p, dt::f32, dt::f32), h = dnnl_figures(p, dt::bf16, dt::f32);
      const double ip = dnnl_weight_gradient(1024, out, in, dt::f32, i1),
                   iph = dnnl_weight_gradient(1024, out, in, dt::bf16, i2);
      std::printf("%-7s %5ld %5ld | %8.0f %8.0f %8.0f | %8.0f %8.0f | %s %s %s %s\n", p.what, out, in, blas, f.plain,
                  ip, h.plain, iph, f.plain_impl.c_str(), i1.c_str(), h.plain_impl.c_str(), i2.c_str());
      std::fflush(stdout);
    }
  return 0;
}
